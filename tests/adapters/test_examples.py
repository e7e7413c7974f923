"""The examples for other trainers run as they stand."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def output(script: str, *arguments: str, folder: Path) -> str:
    """What a script prints in an empty folder."""
    found = subprocess.run(
        [sys.executable, str(EXAMPLES / script), *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "TMPDIR": str(folder)},
    )
    assert found.returncode == 0, found.stderr[-2000:]
    return found.stdout


def test_the_example_for_trl_trains(tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="TRL isn't installed: `make peers`")
    shown = output("trl_trainer.py", folder=tmp_path)
    steps = [line for line in shown.splitlines() if re.match(r"\{'loss': [-\d.]+, 'reward'", line)]
    assert len(steps) == 4
    assert all("'advantage/key-tokens'" in line for line in steps)


def test_the_example_for_verl_prints_the_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, in which a placeholder stands in for Ray."""
    pytest.importorskip("tests.peers.verl_functions")
    script = str(EXAMPLES / "verl_config.py")
    monkeypatch.setattr(sys, "argv", [script, "rloo+gspo"])
    runpy.run_path(script, run_name="__main__")
    shown = capsys.readouterr().out
    assert "algorithm.adv_estimator=rloo+gspo\n" in shown
    assert "actor_rollout_ref.actor.policy_loss.loss_mode=rloo+gspo\n" in shown
    assert "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean\n" in shown
