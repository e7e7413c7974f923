"""TensorBoard files say what `metrics.jsonl` says; no writer can stop or change a run."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import polyopt
from polyopt.errors import UserError
from polyopt.run_folder import read_rows
from polyopt.writers import choice
from polyopt.writers.choice import check_services
from polyopt.writers.event_file import EventFile, masked_crc32c
from polyopt.writers.protocol import RunStart
from polyopt.writers.sent_points import SentPoints
from polyopt.writers.several import Writers
from tests.tiny import TINY_NUMBERS, tiny_policy, tiny_task
from tests.writers.event_files import events, points

NUMBERS = {**TINY_NUMBERS, "prompts.per_step": 2, "rollouts.per_prompt": 4}


def run_tiny(folder: Path, **changes: Any) -> Any:
    settings: dict[str, Any] = {"steps": 3, "overrides": NUMBERS, "quiet": True, **changes}
    return polyopt.train(tiny_policy(), tiny_task(), "grpo", run=folder, **settings)


def logged(run: Path) -> dict[str, dict[int, float]]:
    """What the folder's .jsonl files hold, under the names that writers get."""
    found: dict[str, dict[int, float]] = {}
    for file, prefix in (("metrics.jsonl", ""), ("evals.jsonl", "eval/")):
        for row in read_rows(run / file):
            for name, value in row.items():
                if name not in ("step", "phase") and value is not None:
                    found.setdefault(prefix + name, {})[row["step"]] = value
    return found


def same(shown: dict[str, dict[int, float]], wanted: dict[str, dict[int, float]]) -> None:
    assert set(shown) == set(wanted)
    for tag, values in wanted.items():
        assert shown[tag] == pytest.approx(values, rel=1e-6), tag


class Listener:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.starts: list[RunStart] = []
        self.points: list[tuple[int, dict[str, float]]] = []
        self.ends: list[bool] = []

    def start(self, start: RunStart) -> None:
        self.starts.append(start)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self.points.append((step, dict(metrics)))

    def close(self, finished: bool) -> None:
        self.ends.append(finished)


class Failing(Listener):
    """Raises at the second point."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        super().write(step, metrics)
        if len(self.points) == 2:
            raise OSError("no space left on device")


class Gambler(Listener):
    """Draws from every global generator."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        random.random(), np.random.rand(), torch.rand(3)


def test_event_files_hold_what_metrics_and_evals_hold(tmp_path: Path) -> None:
    run = run_tiny(tmp_path / "run").path
    found = points(run / "tensorboard")
    same(found, logged(run))
    assert {"reward/mean", "eval/pass@1", "seconds/step"} <= set(found)


def test_tensorboards_own_reader_reads_them(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = run_tiny(tmp_path / "run", checkpoint_every=2).path
    run_tiny(run, resume=True, steps=4)
    reader = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    reader.Reload()
    found = {
        tag: {event.step: event.value for event in reader.Scalars(tag)}
        for tag in reader.Tags()["scalars"]
    }
    same({tag: values for tag, values in found.items() if values}, logged(run))
    assert all(len(reader.Scalars(tag)) == len(values) for tag, values in found.items())


def test_a_resumed_run_takes_back_points_after_its_checkpoint(tmp_path: Path) -> None:
    run = run_tiny(tmp_path / "run", checkpoint_every=2, steps=3).path
    newest = max((run / "checkpoints").iterdir())
    assert newest.name == "step-000003"
    (newest / "state.pt").unlink()
    run_tiny(run, resume=True, steps=5)
    files = sorted((run / "tensorboard").iterdir())
    assert len(files) == 2
    assert [event.step for event in events(files[1]) if event.session] == [3]
    same(points(run / "tensorboard"), logged(run))


def test_a_run_without_a_checkpoint_takes_back_everything(tmp_path: Path) -> None:
    run = run_tiny(tmp_path / "run", checkpoint_every=0).path
    for path in (run / "checkpoints").iterdir():
        path.rename(tmp_path / path.name)
    run_tiny(run, resume=True)
    same(points(run / "tensorboard"), logged(run))


def test_checksum_is_crc_32c() -> None:
    """RFC 3720, appendix B.4: 32 bytes of zeros give aa 36 91 8a."""
    crc = 0x8A9136AA
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    assert int.from_bytes(masked_crc32c(bytes(32)), "little") == masked


def test_values_outside_of_float32_and_long_names_are_written(tmp_path: Path) -> None:
    name = "reward/" + "ä" * 200
    file = EventFile(tmp_path / "events.out.tfevents.0")
    file.scalars(2**40, {name: 1e300, "small": 1e-60, "negative": -1e300})
    file.close()
    last = events(tmp_path / "events.out.tfevents.0")[-1]
    assert last.step == 2**40
    assert last.values == {name: math.inf, "small": 0.0, "negative": -math.inf}


def test_a_writer_of_ones_own_gets_every_point_by_the_common_names(tmp_path: Path) -> None:
    mine = Listener()
    run = run_tiny(tmp_path / "run", writers=[mine]).path
    assert [step for step, _ in mine.points] == [0, 1, 2, 3, 3]
    merged: dict[str, dict[int, float]] = {}
    for step, metrics in mine.points:
        for name, value in metrics.items():
            merged.setdefault(name, {})[step] = value
    assert merged == logged(run)
    assert mine.starts[0].folder == run
    assert mine.starts[0].description["expression"] == "grpo"
    assert mine.ends == [True]


def test_a_writer_that_fails_is_dropped_once_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failing, other = Failing(), Listener()
    run = run_tiny(tmp_path / "run", writers=[failing, other]).path
    said = capsys.readouterr().err
    assert said.count("Failing could not write step 1 (OSError: no space left on device)") == 1
    assert len(failing.points) == 2
    assert not failing.ends
    assert len(other.points) == 5
    assert len(read_rows(run / "metrics.jsonl")) == 3


def test_a_full_disk_for_event_files_loses_no_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "tensorboard").write_text("a file where the folder should be")
    run_tiny(run)
    assert "TensorBoardWriter could not start" in capsys.readouterr().err
    assert len(read_rows(run / "metrics.jsonl")) == 3


def test_a_writer_changes_no_number_of_the_run(tmp_path: Path) -> None:
    runs = [
        run_tiny(tmp_path / name, writers=writers).path
        for name, writers in (("alone", []), ("watched", [Gambler()]))
    ]
    rows = [
        [
            {k: v for k, v in row.items() if "second" not in k}
            for row in read_rows(run / "metrics.jsonl")
        ]
        for run in runs
    ]
    assert rows[0] == rows[1]
    before = torch.get_rng_state()
    Writers([Gambler()], print).step(1, {"loss": 1.0})
    assert torch.equal(before, torch.get_rng_state())


def untimed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if "second" not in k} for row in rows]


def test_values_that_are_not_finite_are_left_out() -> None:
    mine = Listener()
    Writers([mine], print).step(1, {"loss": math.nan, "lr": 1e-5, "step": 1, "name": "x"})
    assert mine.points == [(1, {"lr": 1e-5})]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["wandbb"], r"--log wandbb: no such service; did you mean wandb"),
        (["tensorboard"], r"always written.*Leave the option out"),
        (["wandb"], r"--log wandb needs the package wandb: pip install 'polyopt\[wandb\]'"),
        (["trackio"], r"--log trackio needs .* pip install 'polyopt\[trackio\]'"),
    ],
)
def test_services_that_cannot_be_used_are_named_before_a_model_is_loaded(
    names: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=message):
        polyopt.train("no-such-model", "no-such-task", log=names)


def test_a_service_given_twice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_installed", lambda name: True)
    check_services(["wandb", "trackio"])
    with pytest.raises(UserError, match="given twice"):
        check_services(["wandb", "wandb"])


def test_points_that_a_service_has_are_not_sent_again(tmp_path: Path) -> None:
    first = SentPoints(tmp_path / "wandb.json")
    for step in (1, 2, 3):
        first.sent(step, {"loss": 0.1})
    first.sent(0, {"eval/pass@1": 0.1})
    again = SentPoints(tmp_path / "wandb.json")
    assert again.name == first.name
    assert again.has(3, {"loss": 0.1})
    assert not again.has(4, {"loss": 0.1})
    assert again.has(0, {"eval/pass@1": 0.1})
    assert not again.has(3, {"eval/pass@1": 0.1})


def test_wandb_gets_every_point_offline_and_resumes_in_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    sent: list[dict[str, Any]] = []
    real = wandb.sdk.wandb_run.Run.log
    monkeypatch.setattr(
        wandb.sdk.wandb_run.Run,
        "log",
        lambda run, data, *a, **k: (sent.append(data), real(run, data, *a, **k))[1],
    )
    run = run_tiny(tmp_path / "run", log=["wandb"]).path
    name = json.loads((run / "wandb.json").read_text())["name"]
    run_tiny(run, log=["wandb"], resume=True, steps=4)
    assert json.loads((run / "wandb.json").read_text())["name"] == name
    folders = list((run / "wandb").glob(f"offline-run-*-{name}"))
    assert folders
    assert all(list(folder.glob("*.wandb")) for folder in folders)
    assert by_name(sent) == logged(run)


def test_trackio_holds_every_point_once_after_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    sqlite_storage = pytest.importorskip("trackio.sqlite_storage")
    run = run_tiny(tmp_path / "run", log=["trackio"]).path
    run_tiny(run, log=["trackio"], resume=True, steps=4)
    name = json.loads((run / "trackio.json").read_text())["name"]
    stored = sqlite_storage.SQLiteStorage.get_logs("polyopt", f"{run.name}-{name}")
    same(by_name(stored), logged(run))


def by_name(rows: list[dict[str, Any]]) -> dict[str, dict[int, float]]:
    """Values by metric and step; fails if a step is there twice."""
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        for key, value in row.items():
            if key not in ("step", "timestamp"):
                at = found.setdefault(key, {})
                assert row["step"] not in at, (key, row["step"])
                at[row["step"]] = value
    return found
