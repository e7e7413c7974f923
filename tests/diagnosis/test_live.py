"""The signs in the progress display are the doctor's, on the same record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import polyopt
from polyopt import training
from polyopt.diagnosis import diagnose, read_evidence
from polyopt.diagnosis.live import LiveDoctor, Memory
from tests.diagnosis.real_runs import SICK_RUNS, run
from tests.diagnosis.scoring import findings, said_live
from tests.diagnosis.synthetic import SICK
from tests.diagnosis.synthetic_folders import write_run
from tests.tiny import TINY_NUMBERS, tiny_policy, tiny_task


@pytest.fixture
def doctors(monkeypatch: pytest.MonkeyPatch) -> list[LiveDoctor]:
    """Every doctor that training makes."""
    made: list[LiveDoctor] = []

    class Seen(LiveDoctor):
        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__(*args, **named)
            made.append(self)

    monkeypatch.setattr(training, "LiveDoctor", Seen)
    return made


def test_a_run_under_way_is_judged_by_what_its_folder_says(
    tmp_path: Path, doctors: list[LiveDoctor], capsys: pytest.CaptureFixture[str]
) -> None:
    case = run("shared prompts", SICK_RUNS["shared prompts"].shortened(11), tmp_path / "run", 0)
    (doctor,) = doctors
    live, folder = doctor.record(), read_evidence(case.path)
    assert live.metrics == folder.metrics
    assert live.evals == folder.evals
    assert sorted(map(repr, live.rollouts)) == sorted(map(repr, folder.rollouts))
    assert [f.as_json() for f in diagnose(live)] == [f.as_json() for f in diagnose(folder)]
    assert "duplicate-prompts" in doctor.said


@pytest.mark.parametrize("sickness", SICK)
def test_the_display_says_what_the_doctor_finds(sickness: str, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", 7, sickness)
    assert findings(folder) <= said_live(folder)


def test_a_warning_names_its_sign_and_the_flag_to_try() -> None:
    doctor = LiveDoctor()
    said = [
        w for s in range(1, 20) for w in doctor.warnings(s, {"truncated": 0.9, "accuracy": 0.3})
    ]
    assert len(said) == 1
    assert said[0].startswith("step 15: truncation-bias: 90% of rollouts")
    assert "--max-tokens 1024" in said[0]


def test_what_shows_at_one_look_only_is_not_said() -> None:
    doctor = LiveDoctor()
    for step in range(1, 15):
        assert not doctor.warnings(step, {"truncated": 0.9 if step <= 10 else 0.0, "accuracy": 0.3})
    assert not doctor.last_words()


def test_values_that_are_not_finite_are_unknown_live_too() -> None:
    doctor = LiveDoctor()
    for step in range(1, 12):
        doctor.warnings(step, {"grad_norm": float("inf"), "groups/signal": float("nan")})
    assert doctor.record().metrics[0] == {"step": 1, "grad_norm": None, "groups/signal": None}


def test_a_resumed_run_remembers_its_start(tmp_path: Path, doctors: list[LiveDoctor]) -> None:
    numbers: dict[str, Any] = {"quiet": True, "checkpoint_every": 3, "eval_limit": 0}
    polyopt.train(
        tiny_policy(),
        tiny_task(),
        "dr-grpo",
        run=tmp_path,
        steps=3,
        overrides=TINY_NUMBERS,
        **numbers,
    )
    polyopt.train(
        tiny_policy(),
        tiny_task(),
        "dr-grpo",
        run=tmp_path,
        steps=5,
        resume=True,
        overrides=TINY_NUMBERS,
        **numbers,
    )
    assert [row["step"] for row in doctors[1].record().metrics] == [1, 2, 3, 4, 5]
    assert doctors[1].seen == 5


def test_a_memory_keeps_both_ends() -> None:
    memory: Memory[int] = Memory(2, 3)
    for i in range(10):
        memory.add(i)
    assert memory.rows() == [0, 1, 7, 8, 9]
