"""Run folders drawn from the latent numbers of `synthetic.py`, with the noise of a real run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.diagnosis.synthetic import SICK, Course, healthy


def write_run(folder: Path, seed: int, sickness: str | None = None) -> Path:
    """A run folder, drawn from the seed's healthy course after the sickness changed it."""
    course = healthy(seed)
    if sickness is not None:
        SICK[sickness].make(course)
    (folder / "rollouts").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(_about(course)))
    _write(folder / "metrics.jsonl", [_metrics(course, i) for i in range(course.steps)])
    _write(folder / "evals.jsonl", _evals(course))
    logged = [0, *range(9, course.steps, 10)]
    for i in logged:
        _write(folder / "rollouts" / f"step-{i + 1:06d}.jsonl", _rollouts(course, i))
    for phase, step in (("before", 0), ("after", course.steps - 1)):
        rows = _heldout_rows(course, phase, step)
        _write(folder / "rollouts" / f"{phase}.jsonl", rows)
    return folder


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _about(c: Course) -> dict[str, Any]:
    parts = [
        {"slot": "objective.aggregation", "part": c.aggregation, "numbers": {}},
        {"slot": "rollouts", "part": "(numbers)", "numbers": {"per_prompt": c.per_prompt}},
    ]
    return {"expression": "synthetic", "steps": c.steps, "pipeline": parts}


def _metrics(c: Course, i: int) -> dict[str, Any]:
    draw, a = c.draw, float(np.clip(c.accuracy[i], 1e-4, 1 - 1e-4))
    rates = draw.beta(c.spread * a, c.spread * (1 - a), c.groups)
    right = draw.binomial(c.per_prompt, rates)
    signal = float(((right > 0) & (right < c.per_prompt)).mean())
    accuracy = float(right.sum() / (c.groups * c.per_prompt))
    noise = lambda scale: float(np.exp(draw.normal(0, scale)))  # noqa: E731
    count = c.groups * c.per_prompt
    row = {
        "step": i + 1,
        "reward/accuracy": accuracy,
        "accuracy": accuracy,
        "entropy": float(c.entropy[i]) * noise(0.06),
        "length/mean": float(c.length[i]) * noise(0.06),
        "truncated": draw.binomial(count, min(c.truncated[i], 1)) / count,
        "unscored": draw.binomial(count, c.unscored[i]) / count,
        "groups/signal": signal,
        "groups/sampled": float(c.groups),
        "tokens/sampled": count * float(c.length[i]),
        "rollouts/trained": float(round(count * (1 - c.silenced[i]))),
        "sampler_gap": float(c.gap[i]) * noise(0.2),
        "clip/high": min(float(c.clip_high[i]) * noise(0.25), 0.6),
        "clip/low": min(float(c.clip_low[i]) * noise(0.25), 0.6),
        "log_ratio/abs": float(c.moved[i]) * noise(0.2),
        "grad_norm": float(c.grad[i]) * noise(c.grad_noise),
        "lr": float(c.lr[i]),
        "skipped_updates": float(c.skipped[i]),
        "updates": 4.0 if c.moved[0] else 1.0,
        **_staleness(c, i, noise(0.2)),
    }
    style = 0.0
    if c.style is not None:
        style = draw.binomial(count, min(c.style[i], 1)) / count
        row["reward/style"] = style
    row["reward/mean"] = accuracy + 0.5 * style
    if c.kl is not None:
        row["kl_ref"] = float(c.kl[i]) * noise(0.15)
    return row


def _staleness(c: Course, i: int, noise: float) -> dict[str, float]:
    """Age in optimizer steps and distance in nats; four steps on a batch are 1.5 old on average."""
    age = c.age[i] if c.age is not None else 1.5 if c.moved[0] else 0.0
    drift = c.drift[i] if c.drift is not None else c.moved[i]
    return {
        "staleness/mean": float(age),
        "staleness/max": float(2 * age),
        "staleness/drift": float(drift) * noise,
    }


def _evals(c: Course) -> list[dict[str, Any]]:
    rows, n = [], c.heldout_prompts
    for step, share in ((0, 0.0), (c.steps // 2, 0.5), (c.steps, 1.0)):
        true = c.heldout[0] + share * (c.heldout[1] - c.heldout[0])
        p = c.draw.binomial(n, np.clip(true, 0, 1)) / n
        half = 1.96 * max(p * (1 - p), 0.01) ** 0.5 / n**0.5
        row = {"step": step, "pass@1": p, "pass@1/low": max(p - half, 0), "prompts": float(n)}
        rows.append(row | {"pass@1/high": min(p + half, 1.0)})
    return rows


def _rollouts(c: Course, i: int) -> list[dict[str, Any]]:
    rows = []
    for _ in range(4):
        prompt = int(c.draw.integers(0, 40))
        rows += [_row(c, i, f"problem {prompt}", "train") for _ in range(min(c.per_prompt, 8))]
    return rows


def _heldout_rows(c: Course, phase: str, i: int) -> list[dict[str, Any]]:
    names = [f"held-out problem {n}" for n in range(20)]
    names[: c.shared_prompts] = [f"Problem  {n}" for n in range(c.shared_prompts)]
    return [_row(c, i, name, phase) for name in names]


def _row(c: Course, i: int, prompt: str, phase: str) -> dict[str, Any]:
    """One rollout. The policy is short of words: answers occur again, with the same verdict."""
    draw = c.draw
    right = draw.random() < c.accuracy[i]
    answer = "right" if right else f"wrong {draw.integers(0, 3)}"
    judged = right != (draw.random() < c.flips)
    mean = float(c.length[i]) * (1.0 if right else float(c.wrong_length[i]))
    length = max(int(mean * np.exp(draw.normal(0, 0.3))), 2)
    tokens = [answer, *["x"] * (length - 2), "<|im_end|>"]
    if c.special == "begin":
        tokens = ["<s>", *tokens]
    if c.special == "after":
        tokens = [*tokens, *tokens]
    text = f"<s>{prompt}" if c.special == "prompt" else prompt
    return {
        "step": i + 1,
        "phase": phase,
        "prompt_id": prompt,
        "prompt": text,
        "completion": answer,
        "accuracy": float(judged),
        "terms": {"accuracy": float(judged)},
        "finish": "length" if draw.random() < c.truncated[i] else "stop",
        "tokens": tokens,
        "mask": [1] * len(tokens),
        "advantages": [1.0 if judged else -1.0] * len(tokens),
    }
