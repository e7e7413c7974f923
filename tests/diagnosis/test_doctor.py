"""`polyopt doctor` on run folders, and its precision and recall on runs of known sickness."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from polyopt.cli import main
from polyopt.diagnosis import diagnose, read_evidence
from tests.diagnosis.real_runs import HEALTHY_RUNS, SICK_RUNS, learned, run
from tests.diagnosis.scoring import Case, Score, said_live, score
from tests.diagnosis.synthetic import HELD_OUT_SEED, SICK
from tests.diagnosis.synthetic_folders import write_run

REAL_SEEDS = (106, 107)
"""Real runs on seeds 0 to 2 and 100 to 105 were looked at while tuning."""


def synthetic(folder: Path, seeds: range, healthy: int) -> list[Case]:
    """Runs of each sickness on each seed, and healthy ones."""
    cases = [
        Case(
            f"{name}, seed {seed}",
            write_run(folder / f"{name}-{seed}", seed, name),
            frozenset({SICK[name].expected}),
            SICK[name].consequences,
        )
        for name in SICK
        for seed in seeds
    ]
    first = seeds.start
    return cases + [
        Case(f"healthy, seed {seed}", write_run(folder / f"healthy-{seed}", seed))
        for seed in range(first, first + healthy)
    ]


def test_precision_and_recall_on_held_out_synthetic_runs(tmp_path: Path) -> None:
    seeds = range(HELD_OUT_SEED, HELD_OUT_SEED + 2)
    total = score(synthetic(tmp_path, seeds, healthy=20))
    assert total.hits + len(total.misses) >= 40
    assert total.precision >= 0.9, total.false
    assert total.recall >= 0.9, total.misses


def test_real_runs_of_the_tiny_model_are_told_apart(tmp_path: Path) -> None:
    chosen = {name: SICK_RUNS[name] for name in ("rate of 0", "shared prompts")}
    chosen["healthy"] = HEALTHY_RUNS["grpo"]
    cases = [run(n, r.shortened(12), tmp_path / n, HELD_OUT_SEED) for n, r in chosen.items()]
    total = score(cases)
    assert not total.misses
    assert not total.false


@pytest.mark.slow
def test_the_whole_measurement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Prints the table of docs/doctor.md."""
    seeds = range(HELD_OUT_SEED, HELD_OUT_SEED + 10)
    made = synthetic(tmp_path / "synthetic", seeds, healthy=100)
    few = synthetic(tmp_path / "few", seeds[:2], healthy=20)
    table = {"synthetic": score(made), "synthetic, live": score(few, said_live)}
    runs = {**SICK_RUNS, **{f"healthy {name}": real for name, real in HEALTHY_RUNS.items()}}
    cases = [
        run(name, real, tmp_path / f"{name}-{seed}", seed)
        for seed in REAL_SEEDS
        for name, real in runs.items()
    ]
    sound = [case for case in cases if case.expected or learned(case)]
    table["real, tiny model"] = score(sound)
    table["real, live"] = score(sound, said_live)
    with capsys.disabled():
        print_table(table)
    for total in table.values():
        assert total.precision >= 0.9, total.false
        assert total.recall >= 0.9, total.misses


def print_table(table: dict[str, Score]) -> None:
    print()
    for name, total in table.items():
        print(total.line(name))
    for total in table.values():
        for line in [*(f"missed {m}" for m in total.misses), *(f"false {f}" for f in total.false)]:
            print(line)


def test_the_command_prints_evidence_ideas_and_what_to_try(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sick = write_run(tmp_path / "sick", 0, "truncation")
    assert main(["doctor", str(sick)]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    for word in ("serious", "truncation-bias", "overlong-filter", "--max-tokens", "evidence:"):
        assert word in shown


def test_the_command_is_content_with_a_healthy_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", str(write_run(tmp_path / "run", 3))]) == 0
    assert "nothing found" in capsys.readouterr().out


def test_json_holds_the_same_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sick = write_run(tmp_path / "sick", 0, "dead_rate")
    assert main(["doctor", str(sick), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    names = [finding.name for finding in diagnose(read_evidence(sick))]
    assert [finding["name"] for finding in told["findings"]] == names
    assert told["findings"][0]["evidence"]["lr"] < 1e-9


def test_a_folder_without_a_run_is_an_error_that_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", str(tmp_path)]) == 2
    assert "not a run folder" in capsys.readouterr().err


@pytest.mark.parametrize(("make", "said"), [(False, "does not exist"), (True, "is a file")])
def test_a_path_that_is_no_folder_is_an_error_that_says_so(
    make: bool, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run"
    if make:
        path.write_text("")
    assert main(["doctor", str(path)]) == 2
    assert said in capsys.readouterr().err


def test_a_run_without_steps_is_not_called_healthy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(tmp_path / "run", 3)
    (folder / "metrics.jsonl").unlink()
    assert main(["doctor", str(folder)]) == 0
    assert "no training step is logged yet" in capsys.readouterr().out


def cut_short(folder: Path, steps: int, rest: str = "") -> Path:
    """The run as it stood after so many steps, with the rest of a half-written line."""
    log = folder / "metrics.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:steps]) + rest)
    return folder


def test_a_run_of_one_step_says_what_can_not_show(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = cut_short(write_run(tmp_path / "run", 3), 1)
    assert main(["doctor", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "steps 1 to 1 of" in shown
    assert "signs of change need 10 steps" in shown


def test_an_unfinished_run_is_judged_by_what_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = cut_short(write_run(tmp_path / "run", 0, "too_hard"), 12, '{"step": 13, "accu')
    (folder / "evals.jsonl").unlink()
    assert main(["doctor", str(folder)]) == 1
    shown = capsys.readouterr().out
    assert "advantage-collapse" in shown
    assert "1 serious" in shown


def test_damaged_lines_are_counted_not_hidden(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(tmp_path / "run", 3)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 99')
    assert main(["doctor", str(folder)]) == 0
    assert "metrics.jsonl: 1 unreadable" in capsys.readouterr().out
