"""Longer evidence, run by hand: `make slow`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import polyopt
from polyopt.demo import demo
from polyopt.run_folder import read_rows

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", range(3))
def test_the_demo_gains_thirty_points_within_three_minutes_of_training(
    tmp_path: Path, seed: int
) -> None:
    result = demo(seed=seed, run=tmp_path / "run", quiet=True)
    steps = read_rows(result.path / "metrics.jsonl")
    assert sum(row["seconds/step"] for row in steps) < 180
    assert result.after["pass@1"] - result.before["pass@1"] >= 0.3
    assert result.before["prompts"] == 500


def test_smollm2_learns_a_verifiable_task(tmp_path: Path) -> None:
    """A real 135M instruct model: sums up to 24, judged by the last number of its reply."""
    sums = str(sums_file(tmp_path))
    result = polyopt.train("smollm2", sums, "grpo", run=tmp_path / "run", **SMOLLM2)
    rewards = [row["reward/mean"] for row in read_rows(result.path / "metrics.jsonl")]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.1, rewards


SMOLLM2 = {
    "steps": 24,
    "overrides": {
        "prompts.per_step": 8,
        "rollouts.per_prompt": 8,
        "rollouts.max_tokens": 16,
        "updates.optimizer.lr": 1e-5,
        "objective.kl.coefficient": 0.0,
    },
    "task_options": {"rewards": ["number"], "heldout_size": 40},
    "eval_samples": 2,
    "checkpoint_every": 0,
    "quiet": True,
}
"""How the figures of docs/smollm2.md were made."""


def sums_file(folder: Path) -> Path:
    """All sums of two numbers from 1 to 12, in a fixed random order."""
    import random

    rows = [
        {"prompt": f"What is {a} + {b}? Reply with the number only.", "answer": str(a + b)}
        for a in range(1, 13)
        for b in range(1, 13)
    ]
    random.Random(0).shuffle(rows)
    path = folder / "sums.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
