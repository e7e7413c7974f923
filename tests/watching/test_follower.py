"""A run is followed line by line: what is followed equals what is read at the end."""

from __future__ import annotations

import fcntl
import json
import shutil
from pathlib import Path

import pytest

from polyopt.report.html import PAIR_BYTES, ROLLOUT_BYTES, page_data, rollout_texts
from polyopt.report.record import read_run
from polyopt.report.rollout_sample import sample_groups, sample_pairs
from polyopt.report.series import columns
from polyopt.run_folder import RunFolder, in_use
from polyopt.watching.follower import RunFollower
from polyopt.watching.state import state_of
from polyopt.watching.tail import Tail
from tests.report.conftest import write_run


def data_of_folder(run: Path) -> object:
    """What `polyopt report` would show."""
    record = read_run(run)
    groups = sample_groups(run / "rollouts", ROLLOUT_BYTES)
    pairs = sample_pairs(run / "rollouts", PAIR_BYTES)
    return page_data(record, columns(record.metrics), groups, pairs), rollout_texts(groups, pairs)


def data_of(follower: RunFollower) -> object:
    groups, pairs = follower.groups, follower.pairs
    shown = page_data(follower.record, follower.metrics.series(), groups, pairs)
    return shown, rollout_texts(groups, pairs)


def test_a_run_that_grows_is_followed_to_what_the_report_shows(tmp_path: Path) -> None:
    source, run = write_run(tmp_path / "source"), tmp_path / "run"
    (run / "rollouts").mkdir(parents=True)
    follower = RunFollower(run)
    shutil.copy(source / "run.json", run)
    lines = (source / "metrics.jsonl").read_text().splitlines(keepends=True)
    for step, line in enumerate(lines, start=1):
        with (run / "metrics.jsonl").open("a") as file:
            file.write(line)
        logged = source / "rollouts" / f"step-{step:06d}.jsonl"
        if logged.is_file():
            shutil.copy(logged, run / "rollouts")
        if step % 20 == 0:
            assert follower.look()
            assert not follower.look()
    shutil.copy(source / "evals.jsonl", run)
    for phase in ("before", "after"):
        shutil.copy(source / "rollouts" / f"{phase}.jsonl", run / "rollouts")
    assert follower.look()
    assert data_of(follower) == data_of_folder(source)


def test_a_half_written_line_is_read_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tail = Tail(path)
    assert tail.lines() == (False, [])
    path.write_bytes(b'{"step": 1}\n{"st')
    assert tail.lines() == (True, [b'{"step": 1}'])
    assert tail.lines() == (False, [])
    with path.open("ab") as file:
        file.write(b'ep": 2}\n')
    assert tail.lines() == (False, [b'{"step": 2}'])


def test_lines_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run", steps=30)
    follower = RunFollower(run)
    follower.look()
    parsed: list[bytes] = []
    monkeypatch.setattr("polyopt.watching.follower.parse_object", lambda line: parsed.append(line))
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 31}\n')
    follower.look()
    assert parsed == [b'{"step": 31}']


def test_a_resumed_run_drops_what_it_will_write_again(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=30)
    follower = RunFollower(run)
    follower.look()
    RunFolder(run).forget_after(20)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 21, "reward/mean": 0.25}\n')
    assert follower.look()
    assert follower.metrics.steps == list(range(1, 22))
    assert follower.metrics.columns["reward/mean"][-1] == 0.25
    assert follower.groups.steps == 1 + 20 // 5
    assert data_of(follower) == data_of_folder(run)


def test_garbled_and_repeated_lines_are_treated_as_in_the_report(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=10)
    follower = RunFollower(run)
    follower.look()
    with (run / "metrics.jsonl").open("a") as file:
        file.write('nonsense\n{"loss": 1}\n{"step": 4, "loss": 7, "late": 2}\n{"step": 0}\n')
    follower.look()
    assert data_of(follower) == data_of_folder(run)
    assert follower.metrics.columns["loss"][follower.metrics.steps.index(4)] == 7


def test_the_lock_tells_whether_a_run_goes_on(tmp_path: Path) -> None:
    assert not in_use(tmp_path)
    with RunFolder(tmp_path).open(resume=False) as folder:
        folder.write_json("run.json", {})
        assert in_use(tmp_path)
    assert not in_use(tmp_path)


def test_looking_does_not_keep_a_run_from_starting(tmp_path: Path) -> None:
    (tmp_path / "run.lock").touch()
    with (tmp_path / "run.lock").open() as looker:
        fcntl.flock(looker, fcntl.LOCK_SH)
        import threading

        threading.Timer(0.03, lambda: fcntl.flock(looker, fcntl.LOCK_UN)).start()
        RunFolder(tmp_path).open(resume=False).close()


def test_phases_are_told_apart(tmp_path: Path) -> None:
    run = tmp_path / "run"
    folder = RunFolder(run).open(resume=False)
    follower = RunFollower(run)

    def phase() -> str:
        follower.look()
        return state_of(follower).phase

    assert phase() == "loading"
    folder.write_json("run.json", {"steps": 2})
    assert phase() == "waiting"
    folder.append("metrics.jsonl", {"step": 1, "seconds/step": 90.0})
    assert phase() == "running"
    state = state_of(follower)
    assert state.words == "step 1 of 2, about 1 min 30 s left"
    assert state.live
    folder.close()
    assert phase() == "stopped"
    assert f"polyopt train --resume {run}" in state_of(follower).words
    with RunFolder(run).open(resume=True) as folder:
        folder.append("metrics.jsonl", {"step": 2})
        assert phase() == "ending"
    assert phase() == "finished"
    assert not state_of(follower).live


def test_a_run_without_run_json_is_followed(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 3, "loss": 1.0}) + "\n")
    follower = RunFollower(tmp_path)
    follower.look()
    assert state_of(follower).words.startswith("stopped after step 3")
