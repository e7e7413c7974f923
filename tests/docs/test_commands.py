"""Every command of a bash block runs, or is listed here with the reason why it can't."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from polyopt.command_line import EXAMPLES, build_parser
from polyopt.ideas import find_idea, names_in
from tests.docs.pages import PAGES, ROOT, blocks, name_of
from tests.docs.shell import commands, run, smaller, words_of
from tests.docs.test_python import write


def make_knows_the_target(words: list[str]) -> None:
    line = ["make", "--dry-run", "--always-make", *words[1:]]
    found = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr


def extras_exist(words: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extras in re.findall(r"\[([\w,]+)\]", " ".join(words)):
        assert set(extras.split(",")) <= set(project["optional-dependencies"]), extras


def paths_exist(words: list[str]) -> None:
    for word in words:
        if word.startswith(("tests/", "examples/", "scripts/", "benchmarks/")):
            assert (ROOT / word).exists(), word


def options_and_ideas_exist(words: list[str]) -> None:
    options = build_parser().parse_args(words[1:])
    for name in names_in(getattr(options, "expression", None) or "grpo"):
        if ".py:" not in name:
            find_idea(name)


def nothing_more(words: list[str]) -> None:
    pass


NOT_RUN: dict[str, tuple[str, Callable[[list[str]], None]]] = {
    r"make .+": ("sets up an environment of its own", make_knows_the_target),
    r"pip install .+": ("needs the network", extras_exist),
    r"python3? -m venv .+": ("the environment is there already", nothing_more),
    r"\. \.venv/bin/activate": ("the environment is there already", nothing_more),
    r"pytest .+": ("is a test itself", paths_exist),
    r"polyopt .+ --engine (vllm|http).+": ("needs vLLM", options_and_ideas_exist),
    r"VLLM_SERVER_DEV_MODE=1 vllm serve .+": ("needs vLLM", nothing_more),
    r"python3\.11 -m venv vllm-venv": ("needs the network", nothing_more),
    r"vllm-venv/bin/.+": ("needs vLLM", paths_exist),
    r"POLYOPT_VLLM_PYTHON=\S+ pytest .+": ("needs vLLM", paths_exist),
    r"polyopt watch .+": ("serves until stopped; tests/watching does it", options_and_ideas_exist),
    r"polyopt .+ --log wandb": ("needs W&B; tests/writers does it", options_and_ideas_exist),
    r"tensorboard .+": ("needs TensorBoard", nothing_more),
    r"python examples/verl_config\.py .+": ("needs verl; tests/adapters runs it", paths_exist),
    r"python3 -m verl\.trainer\.main_ppo .+": ("needs verl; tests/peers reads it", nothing_more),
}
"""Commands that don't run here: the whole command, the reason, and what is checked instead."""


def why_not(command: str) -> str | None:
    """The pattern of `NOT_RUN` that a command matches."""
    words = " ".join(words_of(command.split("\n")[0]))
    return next((pattern for pattern in NOT_RUN if re.fullmatch(pattern, words)), None)


def sums() -> str:
    numbers = range(1, 13)
    rows = [
        {"prompt": f"What is {a} + {b}? Reply with the number only.", "answer": str(a + b)}
        for a in numbers
        for b in numbers
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)


REWARD = "def brief(completion):\n    return max(0.0, 1 - len(completion) / 200)\n"

GIVEN = {"problems.jsonl": sums(), "sums.jsonl": sums(), "rewards.py": REWARD}
"""Files that a reader has, where a page doesn't write them itself."""

RUNS = {"RUN": 0, "RUN1": 1, "RUN2": 2, "RUN3": 3}
"""Finished runs that a reader has, and their seeds."""


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from polyopt.cli import main

    folder = tmp_path_factory.mktemp("finished")
    (folder / "sums.jsonl").write_text(sums())
    line = f"train grpo --model embedded --task {folder}/sums.jsonl --reward number --max-tokens 8"
    assert main([*smaller(line.split()), "--run", str(folder / "run"), "--quiet"]) == 0
    return folder / "run"


def prepare(page: Path, folder: Path, finished_run: Path) -> None:
    """What a reader of the page has in front of them."""
    for name, text in GIVEN.items():
        (folder / name).write_text(text)
    for name, seed in RUNS.items():
        shutil.copytree(finished_run, folder / name)
        about = json.loads((finished_run / "run.json").read_text())
        (folder / name / "run.json").write_text(json.dumps(about | {"seed": seed}))
    for block in blocks(page, "python"):
        if block.text.startswith("# "):
            write(block, folder)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "bash")], ids=name_of)
def test_commands_run(page: Path, tmp_path: Path, finished_run: Path) -> None:
    prepare(page, tmp_path, finished_run)
    found = [command for block in blocks(page, "bash") for command in commands(block.text)]
    for command in found:
        if pattern := why_not(command):
            NOT_RUN[pattern][1](words_of(command))
    runnable = [command for command in found if not why_not(command)]
    ran = run("\n".join(runnable), tmp_path)
    assert len(ran) == sum(command.startswith("polyopt") for command in runnable)


def test_every_reason_is_still_needed() -> None:
    everything = [c for p in PAGES for b in blocks(p, "bash") for c in commands(b.text)]
    needed = {why_not(command) for command in everything}
    assert not set(NOT_RUN) - needed, "no page has such a command: take it off the list"


@pytest.mark.parametrize("line", EXAMPLES.splitlines()[1:])
def test_examples_of_the_help_name_what_exists(line: str) -> None:
    options_and_ideas_exist(words_of(line))


def test_smaller_changes_scale_only() -> None:
    line = "train dapo --model smollm2 --task t --steps 50 --rollouts 1 --lr 1e-4"
    same = "train dapo --model embedded --task t --steps 1 --rollouts 1 --lr 1e-4"
    added = "--prompts 2 --eval-limit 2 --max-tokens 64"
    assert smaller(line.split()) == [*same.split(), *added.split()]


def test_a_command_that_fails_fails_the_test(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no idea called 'grpp'"):
        run("polyopt show grpp", tmp_path)
