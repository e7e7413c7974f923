"""`polyopt compare A B`: cells fail, die and resume, each by itself."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from polyopt.cli import main
from polyopt.comparison.cells import Cell, Matrix
from polyopt.errors import UserError
from polyopt.run_folder import read_rows

# An idea that changes nothing, but a run that finds the file `kill` is killed at its fourth step;
# and one that always fails.
IDEAS = """
import os
import signal

import polyopt

FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kill")
calls = 0

@polyopt.part("advantages.shaping")
def rough(advantages, batch):
    '''Nothing.'''
    global calls
    calls += 1
    if calls == 4 and os.path.exists(FILE):
        os.remove(FILE)
        os.kill(os.getpid(), signal.SIGKILL)
    return advantages

@polyopt.part("advantages.shaping")
def wrong(advantages, batch):
    '''Fails.'''
    raise ZeroDivisionError("by nought")

@polyopt.idea(title="Bumpy")
def bumpy(recipe):
    '''Changes nothing.'''
    return recipe.append("advantages.shaping", rough)

@polyopt.idea(title="Broken")
def broken(recipe):
    '''Fails.'''
    return recipe.append("advantages.shaping", wrong)
"""


@dataclass(frozen=True)
class Outcome:
    """A comparison called twice: what was printed, and where it is."""

    folder: Path
    bumpy: str
    broken: str
    first: str
    second: str
    started: dict[Path, int]

    def run(self, expression: str) -> Path:
        found = [
            path.parent
            for path in self.folder.glob("cells/*/*/seed-0/run/run.json")
            if json.loads(path.read_text())["arguments"]["recipe"] == expression
        ]
        assert len(found) == 1
        return found[0]


def command(folder: Path, model: Path, data: Path, rewards: Path, *ideas: str) -> list[str]:
    return [
        *("compare", *ideas, "--model", str(model), "--task", str(data)),
        *("--reward", f"{rewards}:letter", "--chat-template", "none", "--steps", "6"),
        *("--prompts", "3", "--rollouts", "4", "--max-tokens", "4", "--lr", "0.01"),
        *("--checkpoint-every", "2", "--seeds", "1", "--out", str(folder)),
    ]


def numbers(run: Path) -> list[dict[str, Any]]:
    """Metrics of every step, less times and what the idea's own part logs."""
    left_out = ("seconds", "tokens_per", "advantage/rough")
    rows = read_rows(run / "metrics.jsonl")
    return [{k: v for k, v in row.items() if not k.startswith(left_out)} for row in rows]


@pytest.fixture(scope="module")
def outcome(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """One cell is killed; called again with a third idea, it resumes, and the third fails."""
    home = tmp_path_factory.mktemp("matrix")
    data, rewards, ideas = home / "problems.jsonl", home / "rewards.py", home / "ideas.py"
    rows = [{"prompt": f"{i}=", "answer": "ab"[i % 2]} for i in range(10)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    rewards.write_text(
        "def letter(completion):\n    return float(completion[:1] in ('a', 'b'))\n"
        "letter.correctness = True\n"
    )
    ideas.write_text(IDEAS)
    (home / "kill").touch()
    bumpy, broken = f"grpo+{ideas}:bumpy", f"grpo+{ideas}:broken"
    inputs = (home / "out", model_folder, data, rewards)
    printed = []
    for expressions in (("grpo", bumpy), ("grpo", bumpy, broken)):
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            assert main(command(*inputs, *expressions)) == 1
        printed.append(output.getvalue())
        if len(printed) == 1:
            folders = home.glob("out/cells/*/*/*/run/run.json")
            started = {path: path.stat().st_mtime_ns for path in folders}
    return Outcome(home / "out", bumpy, broken, printed[0], printed[1], started)


def test_a_killed_cell_is_reported_with_its_log_and_loses_no_other(outcome: Outcome) -> None:
    assert f"{outcome.bumpy}, seed 0: FAILED, the others go on" in outcome.first
    assert "its process was ended by SIGKILL" in outcome.first
    assert "grpo, seed 0: finished in" in outcome.first
    assert re.search(r"grpo +1 ", outcome.first)


def test_a_failing_cell_is_reported_with_its_error_and_log(outcome: Outcome) -> None:
    assert f"{outcome.broken}, seed 0: FAILED" in outcome.second
    assert "ZeroDivisionError: by nought" in outcome.second
    log = re.search(r"^        log (.*)$", outcome.second, re.MULTILINE)
    assert log is not None
    assert "Traceback" in Path(log[1]).read_text()
    assert "ZeroDivisionError: by nought" in (outcome.folder / "comparison.html").read_text()


def test_called_again_finished_cells_are_skipped_and_the_killed_one_resumes(
    outcome: Outcome,
) -> None:
    assert "1 of 3 cells are finished already" in outcome.second
    assert f"{outcome.bumpy}, seed 0: finished in" in outcome.second
    assert len(outcome.started) == 2
    assert {path: path.stat().st_mtime_ns for path in outcome.started} == outcome.started


def test_cells_of_one_seed_see_the_same_prompts_and_noise_killed_or_not(outcome: Outcome) -> None:
    plain, bumpy = numbers(outcome.run("grpo")), numbers(outcome.run(outcome.bumpy))
    assert len(plain) == 6
    assert plain == bumpy
    results = json.loads((outcome.folder / "results.json").read_text())
    (pair,) = results["pairs"]
    assert pair["difference"]["paired"]
    assert pair["difference"]["estimate"]["value"] == 0
    assert pair["improvement"]["value"] == 0.5


def test_a_comparisons_folder_stands_for_its_finished_cells(
    outcome: Outcome, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "--runs", str(outcome.folder), "--out", str(tmp_path)]) == 0
    assert re.search(r"grpo +1 ", capsys.readouterr().out)
    assert (tmp_path / "comparison.html").is_file()


def test_other_settings_do_not_go_into_the_same_folder(tmp_path: Path) -> None:
    Matrix(("grpo",), ("sums",), (0,), {"steps": 5}).enter(tmp_path)
    Matrix(("grpo", "dapo"), ("sums",), (0, 1), {"steps": 5}).enter(tmp_path)
    with pytest.raises(UserError, match=r"steps = 5, not 6.*--out FOLDER"):
        Matrix(("grpo",), ("sums",), (0,), {"steps": 6}).enter(tmp_path)


def test_every_cell_has_a_folder_of_its_own_and_more_seeds_keep_the_old_ones() -> None:
    few = Matrix(("a+b", "a-b", "mix(0.5*a,0.5*b)", "mix(0.5*a+0.5*b)"), ("t", "u"), (0, 1), {})
    folders = [cell.folder for cell in few.cells(Path("x"))]
    assert len(set(folders)) == 16
    more = Matrix((*few.expressions, "c"), few.tasks, (0, 1, 2), {})
    assert set(folders) < {cell.folder for cell in more.cells(Path("x"))}
    assert few.default_folder() == more.default_folder()
    assert few.default_folder() != Matrix(("a",), ("t", "u"), (0,), {"steps": 3}).default_folder()


def test_ctrl_c_says_how_far_it_came_and_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(cells: list[Cell], jobs: int, say: object) -> None:
        done = cells[0]
        done.run.mkdir(parents=True)
        (done.run / "run.json").write_text("{}")
        done.outcome_file.write_text('{"state": "finished", "seconds": 1}')
        raise KeyboardInterrupt

    monkeypatch.setattr("polyopt.comparison.compare.run_cells", interrupted)
    line = ["compare", "grpo", "dapo", "--model", "m", "--task", "t", "--out", str(tmp_path)]
    assert main(line) == 130
    assert "1 of 10 cells are finished; the same command goes on" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["--model", "m", "--task", "t"], r"needs expressions such as"),
        (["grpo", "--task", "t"], r"needs --model"),
        (["grpo", "--model", "m"], r"needs --task"),
        (["grpo", "--runs", "r"], r"would be trained anew"),
        (["--steps", "9", "--runs", "r"], r"--steps has no meaning with --runs"),
        (["--runs", "nowhere"], r"nowhere does not exist"),
        (["grpp", "--model", "m", "--task", "t"], r"no idea called 'grpp'; did you mean .*grpo"),
        (["grpo", "--model", "m", "--task", "t", "--seeds", "0"], r"--seeds is 0"),
        (["grpo", "--model", "m", "--task", "t", "--jobs", "0"], r"--jobs is 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_bad_arguments_are_named_before_any_cell_starts(
    line: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *line]) == 2
    assert re.search(message, capsys.readouterr().err, re.DOTALL)
    assert not list(tmp_path.rglob("cells"))


@pytest.mark.slow
def test_cells_end_with_a_killed_comparison_and_the_next_call_completes_it(
    model_folder: Path, data_file: Path, reward_file: Path, tmp_path: Path
) -> None:
    line = [sys.executable, "-m", "polyopt.cli"]
    line += command(tmp_path / "out", model_folder, data_file, reward_file, "grpo", "dr-grpo")
    line += ["--steps", "400", "--seeds", "2"]
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("out/cells/*/*/*/run/metrics.jsonl")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    time.sleep(1.0)
    sizes = {p: p.stat().st_size for p in tmp_path.glob("out/cells/*/*/*/run/metrics.jsonl")}
    time.sleep(1.0)
    assert {p: p.stat().st_size for p in sizes} == sizes  # nobody writes any more
    again = subprocess.run(line, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stdout + again.stderr
    assert again.stdout.count(": finished in") == 4
