"""The command line: every kind of bad input gets one message with a way out, and exit code 2."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from polyopt.cli import main
from polyopt.command_line import build_parser
from polyopt.ideas import load_catalog

MODEL = "no-such-model-must-be-loaded"


def fails(capsys: pytest.CaptureFixture[str], *line: str) -> str:
    """The error message of a command that must fail with exit code 2, without a traceback."""
    try:
        code = main(line)
    except SystemExit as stop:
        code = stop.code  # type: ignore[assignment]
    error = capsys.readouterr().err
    assert code == 2, error
    assert "Traceback" not in error
    assert "error: " in error
    return error.split("error: ", 1)[1]


def train(*more: str, idea: str = "grpo", task: str = "data.jsonl") -> list[str]:
    return ["train", idea, "--model", MODEL, "--task", task, *more]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (train(idea="grpp"), r"no idea called 'grpp'; did you mean .*grpo"),
        (train(idea="dapo+gspo"), r"'dapo' and 'gspo' both claim objective.surrogate.*Drop one"),
        (train(idea="grpo+rloo"), r"'grpo' and 'rloo' both claim advantages.estimator"),
        (train(idea="grpo+ktae+ktae"), r"'ktae' is in the expression twice"),
        (train(idea="dapo+dynamic-sampling"), r"'dynamic-sampling' adds .* 'dapo' has already"),
        (train(idea="grpo+"), r"no idea called 'grpo\+'; did you mean .*grpo"),
        (train(idea="grpo++dapo"), r"grpo\+.*did you mean .*grpo"),
        (train("--set", "objective.clip_hihg=0.3"), r"no such value; did you mean .*clip_high"),
        (train("--set", "objective.clip_high=wide"), r"expected a number, such as 0.2"),
        (train("--set", "rollouts.per_prompt=2.5"), r"expected a whole number"),
        (train("--set", "clip_high"), r"write it as PATH=VALUE"),
        (train("--set", "objective.kl=big"), r"a part .kl-penalty-k3.*Only `none`"),
        (train("--rollouts", "1"), r"'group-z-score' .*'grpo'.* at least 2.*reinforce\+\+"),
        (train("--temperature", "0"), r"temperature is 0.*above 0"),
        (train("--prompts", "0"), r"prompts.per_step is 0.*at least 1"),
        (train("--steps", "0"), r"--steps is 0: it must be at least 1"),
        (train(task="missing.jsonl"), r"missing.jsonl"),
        (train(task="reasoning_gym:chain_sun"), r"chain_sun.*did you mean .*chain_sum"),
        (["train", "grpo", "--task", "x"], r"needs --model"),
        (["train", "--model", "x", "--task", "y"], r"needs an expression"),
        (["train", "--resume", "nowhere"], r"nowhere holds no run to resume"),
        (train("--stpes", "3"), r"--stpes 3; did you mean --steps"),
        (["trian"], r"invalid choice: 'trian'"),
        (["show", "dapo+nothing"], r"no idea called 'nothing'"),
        (["recipes", "zzz"], r"no idea has 'zzz'"),
        (["report", "nowhere"], r"nowhere is no run folder"),
        (["watch", "nowhere"], r"nowhere is no run folder"),
        (train("--log", "tensorboard"), r"--log tensorboard: its files are always written"),
        (["compare", "grpo", "--log", "wandbb"], r"--log wandbb: no such service"),
        (train("--log", "wandbb"), r"--log wandbb: no such service; did you mean wandb"),
        (["eval", "--model", "x"], r"needs --task"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_bad_arguments_are_named_before_any_model_is_loaded(
    line: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.jsonl").write_text('{"prompt": "1=", "answer": "a"}\n' * 3)
    assert re.search(message, fails(capsys, *line), re.DOTALL)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"prompt": "1=", "answer": "a"}\n{"prompt": \n', r"line 2"),
        ('{"question_text": "1=", "answer": "a"}\n', r"question_text.*--prompt-column"),
        ("", r"empty"),
        ('{"prompt": "", "answer": "a"}\n', r"line 1|row 1|first"),
    ],
)
def test_garbled_data_is_named_with_file_and_line(
    content: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    data = tmp_path / "garbled.jsonl"
    data.write_text(content)
    error = fails(capsys, *train(task=str(data)))
    assert "garbled.jsonl" in error
    assert re.search(message, error, re.DOTALL), error


REWARDS = """
def raises(completion):
    raise ZeroDivisionError("by nought")
def none(completion):
    pass
def nan(completion):
    return float("nan")
def short(completions):
    return [1.0]
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("raises", r"raises.*ZeroDivisionError: by nought"),
        ("none", r"none.*None"),
        ("nan", r"nan.*nan"),
        ("short", r"short.*1 .*"),
        ("missing", r"missing"),
    ],
)
def test_a_bad_reward_function_is_named_with_the_prompt(
    name: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    model_folder: Path,
    data_file: Path,
) -> None:
    rewards = tmp_path / "bad.py"
    rewards.write_text(REWARDS)
    line = ["train", "grpo", "--model", str(model_folder), "--task", str(data_file)]
    line += ["--reward", f"{rewards}:{name}", "--chat-template", "none", "--max-tokens", "3"]
    error = fails(capsys, *line, "--run", str(tmp_path / "run"), "--eval-limit", "0", "--quiet")
    assert re.search(message, error, re.DOTALL), error
    if name in ("raises", "nan", "short"):
        assert re.search(r"\d=", error), error


def test_a_model_without_chat_template_is_named_with_the_way_out(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, model_folder: Path, data_file: Path
) -> None:
    line = ["train", "grpo", "--model", str(model_folder), "--task", str(data_file)]
    error = fails(capsys, *line, "--run", str(tmp_path / "run"), "--reward", "exact")
    assert "chat template" in error
    assert "--chat-template" in error or "none" in error


def test_a_missing_model_says_what_was_looked_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, data_file: Path
) -> None:
    line = ["train", "grpo", "--model", str(tmp_path / "nothing"), "--task", str(data_file)]
    assert "nothing" in fails(capsys, *line, "--run", str(tmp_path / "run"))


def test_an_unwritable_run_folder_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, data_file: Path, model_folder: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    line = ["train", "grpo", "--model", str(model_folder), "--task", str(data_file)]
    error = fails(capsys, *line, "--run", str(tmp_path / "file" / "run"))
    assert "can't write to the run folder" in error
    assert "--run" in error


def test_out_of_memory_says_what_to_lower(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from polyopt import cli

    def explode(options: object) -> int:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(cli, "_show", explode)
    error = fails(capsys, "show", "grpo")
    assert "out of memory" in error
    assert "--micro-tokens" in error


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "nothing", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_recipes_lists_every_idea_with_its_paper(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    output = capsys.readouterr().out
    for name, idea in load_catalog().items():
        assert re.search(rf"^{re.escape(name)}\s", output, re.MULTILINE), name
        assert idea.summary, name


def test_show_prints_parts_numbers_and_papers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "dapo+ktae+greso", "--set", "objective.clip_high=0.3", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    by_slot = {row["slot"]: row for row in shown["pipeline"]}
    assert by_slot["objective.surrogate"]["numbers"]["clip_high"] == 0.3
    assert by_slot["advantages.shaping[0]"]["idea"] == "ktae"
    assert by_slot["advantages.shaping[0]"]["paper"] == "arXiv 2505.16826"
    assert shown["batch"]["rollouts per step"] == 128
    assert main(["show", "dapo+ktae"]) == 0
    assert "key-tokens" in capsys.readouterr().out


def test_an_optional_part_can_be_taken_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "grpo", "--set", "objective.kl=none", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["pipeline"]
    assert not [row for row in rows if row["slot"] == "objective.kl"]


def test_an_idea_in_ones_own_file_is_one_function(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from polyopt.advantages.baselines import group_mean_baseline\n"
        "def my_idea(recipe):\n"
        "    return recipe.claim('advantages.estimator', group_mean_baseline)\n"
        "def broken(recipe):\n"
        "    recipe.claim('advantages.estimator', group_mean_baseline)\n"
    )
    assert main(["show", f"clip-higher+{mine}:my_idea", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["pipeline"]
    row = next(row for row in rows if row["slot"] == "advantages.estimator")
    assert (row["idea"], row["part"]) == ("my-idea", "group-mean-baseline")
    assert "returned NoneType" in fails(capsys, "show", f"{mine}:broken")
    assert "did you mean my_idea" in fails(capsys, "show", f"{mine}:my_ide")
    mine.write_text("import nothing_like_it\n")
    assert re.search(r"mine.py line 1.*nothing_like_it", fails(capsys, "show", f"{mine}:my_idea"))


def test_importing_polyopt_is_fast_and_light() -> None:
    """Nothing heavy is imported; the bound on time is ten times what it takes."""
    code = "import sys, polyopt; print('torch' in sys.modules, 'transformers' in sys.modules)"
    start = time.perf_counter()
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "False"]
    assert time.perf_counter() - start < 10


def test_every_option_has_a_help_text() -> None:
    commands = next(a for a in build_parser()._actions if a.dest == "command").choices
    for name, parser in commands.items():  # type: ignore[union-attr]
        for action in parser._actions:
            assert action.help, f"{name} {action.option_strings or action.dest}"
