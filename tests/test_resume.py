"""A run that is killed and resumed gives the numbers of one that never was."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from polyopt import checkpoint
from polyopt.errors import UserError
from polyopt.run_folder import RunFolder, read_rows

STEPS = 8


def command(run: Path, model: Path, data: Path, rewards: Path) -> list[str]:
    """A run with memory in every stage: filter, replay, schedule of the fast steps, value head."""
    return [
        *(sys.executable, "-m", "polyopt.cli", "train", "grpo+greso+rlep+sfpo"),
        *("--model", str(model), "--task", str(data), "--reward", f"{rewards}:letter"),
        *("--chat-template", "none", "--steps", str(STEPS), "--prompts", "3", "--rollouts", "4"),
        *("--max-tokens", "4", "--lr", "0.01", "--checkpoint-every", "2", "--run", str(run)),
        *("--eval-every", "3", "--log-rollouts-every", "2", "--quiet"),
    ]


def resume(run: Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "polyopt.cli", "train", "--resume", str(run), "--quiet"]
    return subprocess.run(line, capture_output=True, text=True, env=environment(), check=False)


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def numbers(run: Path) -> list[dict[str, Any]]:
    """Metrics of every step, less the times."""
    rows = read_rows(run / "metrics.jsonl")
    return [
        {k: v for k, v in row.items() if not k.startswith(("seconds", "tokens_per"))}
        for row in rows
    ]


@pytest.fixture(scope="module")
def uninterrupted(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run that nobody disturbed, with its inputs."""
    folder = tmp_path_factory.mktemp("resume")
    data, rewards = folder / "problems.jsonl", folder / "rewards.py"
    rows = [{"prompt": f"{i}=", "answer": "ab"[i % 2]} for i in range(10)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    rewards.write_text(
        "def letter(completion):\n    return float(completion[:1] in ('a', 'b'))\n"
        "letter.correctness = True\n"
    )
    run = folder / "whole"
    line = command(run, model_folder, data, rewards)
    subprocess.run(line, check=True, env=environment(), capture_output=True)
    return {"run": run, "model": model_folder, "data": data, "rewards": rewards}


@pytest.mark.parametrize("seed", [0, 1])
def test_killed_at_a_random_moment_and_resumed_equals_never_killed(
    uninterrupted: dict[str, Path], tmp_path: Path, seed: int
) -> None:
    run = tmp_path / "killed"
    inputs = (uninterrupted["model"], uninterrupted["data"], uninterrupted["rewards"])
    process = subprocess.Popen(
        command(run, *inputs),
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    draw = random.Random(seed)
    kill_after = draw.randrange(1, STEPS - 1)
    deadline = time.monotonic() + 120
    metrics = run / "metrics.jsonl"
    while time.monotonic() < deadline and process.poll() is None:
        if metrics.is_file() and len(metrics.read_text().splitlines()) >= kill_after:
            time.sleep(draw.random() * 0.05)
            break
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = resume(run)
    assert done.returncode == 0, done.stderr
    assert numbers(run) == numbers(uninterrupted["run"])
    assert [r["pass@1"] for r in read_rows(run / "evals.jsonl")] == [
        r["pass@1"] for r in read_rows(uninterrupted["run"] / "evals.jsonl")
    ]
    weights = load_file(run / "model" / "model.safetensors")
    for name, weight in load_file(uninterrupted["run"] / "model" / "model.safetensors").items():
        assert torch.equal(weights[name], weight), name
    kept = {p.name for p in (run / "rollouts").iterdir()}
    assert kept == {p.name for p in (uninterrupted["run"] / "rollouts").iterdir()}


def test_final_model_loads_with_transformers(uninterrupted: dict[str, Path]) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    AutoModelForCausalLM.from_pretrained(uninterrupted["run"] / "model")
    AutoTokenizer.from_pretrained(uninterrupted["run"] / "model")


def test_ctrl_c_finishes_the_step_saves_and_says_how_to_resume(
    uninterrupted: dict[str, Path], tmp_path: Path
) -> None:
    run = tmp_path / "stopped"
    inputs = (uninterrupted["model"], uninterrupted["data"], uninterrupted["rewards"])
    line = [*command(run, *inputs), "--steps", "5000", "--eval-every", "0"]
    process = subprocess.Popen(
        line, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    while not (run / "metrics.jsonl").is_file():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert f"polyopt train --resume {run}" in output
    done = len(read_rows(run / "metrics.jsonl"))
    assert checkpoint.step_of(checkpoint.available(run / "checkpoints")[0]) == done


def test_retention_keeps_the_newest(uninterrupted: dict[str, Path]) -> None:
    kept = checkpoint.available(uninterrupted["run"] / "checkpoints")
    assert [checkpoint.step_of(path) for path in kept] == [8, 6]


def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_says_so(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        (folder / "state.pt").write_bytes(b"weights" * 100)

    for step in (2, 4):
        checkpoint.save(tmp_path, step, write, keep=2)
    state = tmp_path / "step-000004" / "state.pt"
    state.write_bytes(state.read_bytes()[:50])
    warnings: list[str] = []
    found = checkpoint.newest_sound(tmp_path, warnings.append)
    assert found is not None
    assert checkpoint.step_of(found) == 2
    assert "step-000004 is damaged (state.pt has changed" in warnings[0]
    (tmp_path / "step-000002" / "state.pt").unlink()
    with pytest.raises(UserError, match=r"every checkpoint in .* is damaged"):
        checkpoint.newest_sound(tmp_path, warnings.append)


def test_a_half_written_checkpoint_is_never_seen(tmp_path: Path) -> None:
    def crash(folder: Path) -> None:
        (folder / "state.pt").write_bytes(b"half")
        raise RuntimeError("the power went out")

    with pytest.raises(RuntimeError):
        checkpoint.save(tmp_path, 3, crash, keep=2)
    assert checkpoint.available(tmp_path) == []


def test_a_run_folder_serves_one_process_at_a_time(tmp_path: Path) -> None:
    with (
        RunFolder(tmp_path / "run").open(resume=False),
        pytest.raises(UserError, match=r"in use by another process: wait.*--run"),
    ):
        RunFolder(tmp_path / "run").open(resume=False)


def test_a_second_run_does_not_overwrite_the_first(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run").open(resume=False) as folder:
        folder.write_json("run.json", {})
    with pytest.raises(UserError, match=r"already holds a run: continue it with .*--resume"):
        RunFolder(tmp_path / "run").open(resume=False)
