"""Run folders as a finished run leaves them, without training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write_run(
    path: Path,
    expression: str = "grpo",
    seed: int = 0,
    final: float | None = 0.5,
    accuracy: tuple[float, ...] = (0.0, 0.5, 1.0),
    task: str = "sums",
    overrides: dict[str, Any] | None = None,
) -> Path:
    """A run of as many steps as there are accuracies."""
    path.mkdir(parents=True)
    about = {
        "expression": expression,
        "model": "tiny",
        "task": task,
        "seed": seed,
        "steps": len(accuracy),
        "arguments": {"overrides": overrides or {}},
    }
    (path / "run.json").write_text(json.dumps(about))
    rows = [
        {"step": i + 1, "accuracy": a, "tokens/sampled": 100.0, "seconds/step": 0.5}
        for i, a in enumerate(accuracy)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if final is not None:
        evals = [
            {"step": 0, "phase": "before", "pass@1": 0.1},
            {"step": len(accuracy), "phase": "after", "pass@1": final},
        ]
        (path / "evals.jsonl").write_text("".join(json.dumps(row) + "\n" for row in evals))
    return path
