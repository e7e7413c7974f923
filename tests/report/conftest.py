"""Made-up run folders: no model, the schema of real ones."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PIPELINE = [
    ("prompts", "prompts.source", "shuffled", {}, None, None, None),
    ("rollouts", "rollouts.sampler", "plain", {"temperature": 1.0, "top_p": 1.0}, None, None, None),
    ("rewards", "rewards.shaping[0]", "overlong-penalty", {"limit": 256, "cache": 64}, "dapo",
     "arXiv 2503.14476", "DAPO: An Open-Source LLM Reinforcement Learning System at Scale"),
    ("advantages", "advantages.estimator", "group-z-score", {"eps": 1e-06}, "ktae",
     "arXiv 2402.03300", "DeepSeekMath: Pushing the Limits of Mathematical Reasoning"),
    ("advantages", "advantages.shaping[0]", "key-tokens", {"top": 0.2, "scale": 1.0}, "ktae",
     "arXiv 2505.16826", "KTAE: A Model-Free Algorithm to Key-Tokens Advantage Estimation"),
    ("selection", "selection.refill", "dynamic-sampling", {"rounds": 3}, "dapo",
     "arXiv 2503.14476", "DAPO: An Open-Source LLM Reinforcement Learning System at Scale"),
    ("objectives", "objective.surrogate", "clipped-ratio", {"low": 0.2, "high": 0.28}, "dapo",
     "arXiv 2503.14476", "DAPO: An Open-Source LLM Reinforcement Learning System at Scale"),
    ("objectives", "objective.aggregation", "token-mean", {}, "dapo",
     "arXiv 2503.14476", "DAPO: An Open-Source LLM Reinforcement Learning System at Scale"),
    ("updates", "updates.optimizer", "adamw", {"lr": 1e-05, "weight_decay": 0.0}, None, None, None),
]  # fmt: skip

PIECES = (
    "First", ",", " add", " the", " tens", ":", " 4", "0", " +", " 3", "0", " =", " 7", "0", ".",
    "\n", "Then", " the", " ones", ":", " ", "7", " +", " 8", " =", " 1", "5", ".", "\n", "So",
    " the", " answer", " is", " ", "8", "5", ".",
)  # fmt: skip


@pytest.fixture
def make_run() -> Callable[..., Path]:
    """`write_run`, as a fixture: tests don't import each other."""
    return write_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A small run folder."""
    return write_run(tmp_path / "run")


def write_run(
    folder: Path,
    *,
    steps: int = 60,
    groups: int = 3,
    rollouts: int = 8,
    every: int = 5,
    tokens: int = 60,
    seed: int = 0,
    text: str = "",
    gain: float = 1.0,
) -> Path:
    """A folder as a run leaves it: `every` so many steps, `groups` groups are logged.

    `text` is put into every prompt, completion and name that a user could choose.
    """
    draw = random.Random(seed)
    (folder / "rollouts").mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps(_about(steps, seed, text)))
    rows = [_metrics(step, steps, draw, gain) for step in range(1, steps + 1)]
    write_lines(folder / "metrics.jsonl", rows)
    marks = sorted({0, steps // 2, steps})
    write_lines(folder / "evals.jsonl", [_evaluation(step, steps, gain) for step in marks])
    for step in [s for s in range(1, steps + 1) if s == 1 or s % every == 0]:
        logged = [
            _rollout(step, group, i, step / steps, tokens, draw, text)
            for group in range(groups)
            for i in range(rollouts)
        ]
        write_lines(folder / "rollouts" / f"step-{step:06d}.jsonl", logged)
    for phase, progress in (("before", 0.1), ("after", 0.9)):
        rows = [_held_out(i, phase, progress, draw, text) for i in range(16)]
        write_lines(folder / "rollouts" / f"{phase}.jsonl", rows)
    return folder


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    """One JSON object a line; NaN is written as Python writes it."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def _about(steps: int, seed: int, text: str) -> dict[str, Any]:
    keys = ("stage", "slot", "part", "numbers", "idea", "paper", "title")
    return {
        "polyopt": "0.1.0",
        "expression": "dapo+ktae" + text,
        "model": "smollm2-135m-instruct" + text,
        "task": "reasoning_gym:chain_sum" + text,
        "seed": seed,
        "steps": steps,
        "started": "2026-12-01T10:15:00",
        "arguments": {"max_tokens": 256, "eval_every": 0, "overrides": {"lr": text or "1e-5"}},
        "pipeline": [dict(zip(keys, row, strict=True)) for row in PIPELINE],
        "batch": {
            "prompts per step": 16,
            "rollouts per prompt": 8,
            "rollouts per step": 128,
            "optimizer steps per step": 2,
            "rollouts per optimizer step": 64,
        },
    }


def _metrics(step: int, steps: int, draw: random.Random, gain: float) -> dict[str, Any]:
    x = step / steps
    right = 0.18 + gain * 0.5 * (1 - math.exp(-3 * x)) + draw.gauss(0, 0.04)
    row: dict[str, Any] = {
        "step": step,
        "reward/mean": right - 0.1 * (1 - x) + draw.gauss(0, 0.01),
        "reward/exact": right,
        "reward/overlong": -0.1 * (1 - x) + draw.gauss(0, 0.01),
        "accuracy": right,
        "entropy": 0.25 + 0.9 * math.exp(-4 * x) + abs(draw.gauss(0, 0.03)),
        "length/mean": 90 + 60 * x + draw.gauss(0, 6),
        "length/max": 256.0 if draw.random() < 0.7 else 240.0,
        "truncated": max(0.0, 0.2 * (1 - x) + draw.gauss(0, 0.02)),
        "groups/signal": min(1.0, max(0.0, 0.75 - 0.3 * x + draw.gauss(0, 0.08))),
        "groups/trained": 16.0,
        "unscored": 0.0,
        "tokens/sampled": float(12000 + draw.randrange(4000)),
        "tokens/trained": float(9000 + draw.randrange(3000)),
        "advantage/abs": 0.7 + draw.gauss(0, 0.05),
        "advantage/group-z-score": 0.6 + draw.gauss(0, 0.05),
        "advantage/key-tokens": 0.25 + draw.gauss(0, 0.03),
        "loss": draw.gauss(0, 0.02),
        "grad_norm": math.exp(draw.gauss(-0.5, 0.4) + (3 if draw.random() < 0.02 else 0)),
        "lr": 1e-5 * min(1.0, step / 10),
        "clip/high": abs(draw.gauss(0.01, 0.004)),
        "clip/low": abs(draw.gauss(0.004, 0.002)),
        "log_ratio/mean": draw.gauss(0, 0.002),
        "log_ratio/abs": abs(draw.gauss(0.02, 0.004)),
        "sampler_gap": abs(draw.gauss(2e-4, 5e-5)),
        **_quantiles("ratio", 1.0, abs(draw.gauss(0.05, 0.01))),
        **_quantiles("sampler_gap", 0.0, abs(draw.gauss(4e-4, 1e-4))),
        "updates": 2.0,
        "skipped_updates": 1.0 if step == 7 else 0.0,
        "greso/skipped": float(draw.randrange(5)),
        "greso/probed": float(draw.randrange(5)),
    }
    return row | _times(step, row["tokens/sampled"], draw)


def _quantiles(name: str, middle: float, reach: float) -> dict[str, float]:
    shares = {"p01": -1.0, "p10": -0.4, "p50": 0.0, "p90": 0.4, "p99": 1.0, "max": 2.0}
    return {f"{name}/{label}": middle + share * reach for label, share in shares.items()}


def _times(step: int, tokens: float, draw: random.Random) -> dict[str, Any]:
    spent = {"rollouts": 6.2, "rewards": 0.2, "columns": 1.4, "advantages": 0.3, "update": 4.1}
    spent = {name: max(0.0, s * draw.gauss(1, 0.08)) for name, s in spent.items()}
    row = {f"seconds/{name}": s for name, s in spent.items()}
    row["seconds/step"] = sum(spent.values()) + 0.4
    row["tokens_per_second"] = tokens / row["seconds/step"]
    if step % 20 == 1:
        row["seconds/checkpoint"] = 2.5
    return row


def _evaluation(step: int, steps: int, gain: float) -> dict[str, Any]:
    rate = 0.21 + gain * 0.42 * step / steps
    phase = {0: "before", steps: "after"}.get(step, f"step-{step}")
    row: dict[str, Any] = {"step": step, "phase": phase, "prompts": 200, "samples": 4}
    for name, more in (("pass@1", 0.0), ("pass@4", 0.17), ("maj@4", 0.05)):
        value = min(1.0, rate + more)
        row |= {name: value, f"{name}/low": value - 0.06, f"{name}/high": min(1.0, value + 0.06)}
    return row | {"length/mean": 120 + 30 * step / steps, "truncated": 0.1, "unscored": 0.0}


def _rollout(
    step: int, group: int, i: int, x: float, n: int, draw: random.Random, text: str
) -> dict[str, Any]:
    chance = 0.15 + 0.3 * group / 2 + 0.4 * x
    right = draw.random() < chance
    length = max(4, int(n * draw.uniform(0.6, 1.4)))
    pieces = [PIECES[j % len(PIECES)] for j in range(length - 1)] + [text or "<end>"]
    base = 0.9 if right else -0.6
    advantages = [base + (draw.gauss(0, 1) ** 3) * 0.25 for _ in pieces]
    mask = [0 if 6 <= j < 9 and i == 3 else 1 for j in range(length)]
    return {
        "step": step,
        "group": group,
        "rollout": i,
        "prompt_id": f"chain_sum-{17 * step + group}",
        "prompt": f"{text}What is 47 + 38? Think step by step, then give the number.",
        "completion": "".join(pieces),
        "answer": "85" + text,
        "reward": float(right) - 0.1 * draw.random(),
        "terms": {"exact": float(right), "overlong" + text: -0.1 * draw.random()},
        "accuracy": float(right),
        "finish": "length" if draw.random() < 0.15 else "stop",
        "tokens": pieces,
        "mask": mask,
        "advantages": [a * m for a, m in zip(advantages, mask, strict=True)],
        "advantages/group-z-score": [base * m for m in mask],
        "advantages/key-tokens": [(a - base) * m for a, m in zip(advantages, mask, strict=True)],
        "ratio": [math.exp(draw.gauss(0, 0.05)) if m else None for m in mask],
        "loss_weight": [a * 1e-4 if m else None for a, m in zip(advantages, mask, strict=True)],
        "logp": [-abs(draw.gauss(0, 0.8)) for _ in pieces],
        "entropy": [abs(draw.gauss(0, 0.7)) for _ in pieces],
        "phase": "train",
    }


def _held_out(i: int, phase: str, x: float, draw: random.Random, text: str) -> dict[str, Any]:
    right = draw.random() < 0.2 + 0.6 * x
    return {
        "step": 0,
        "phase": phase,
        "prompt_id": f"held-{i}",
        "prompt": f"{text}What is {30 + i} + {55 - i}?",
        "completion": f"{text}Let me see.\nThe answer is {85 if right else 84 - i}.",
        "answer": "85",
        "reward": float(right),
        "terms": {"exact": float(right)},
        "accuracy": float(right),
        "finish": "stop",
        "logp": [-0.1, -0.2],
    }
