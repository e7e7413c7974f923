"""A reasoning-gym verifier: run by `judge_worker.py`, imports nothing of polyopt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def make(name: str, config: Mapping[str, Any]) -> Callable[[str, Mapping[str, Any]], float]:
    """The verifier of a data set: (answer, entry) -> score, 0 for an answer it can't read."""
    import reasoning_gym

    dataset = reasoning_gym.create_dataset(name, **config)

    def judge(answer: str, entry: Mapping[str, Any]) -> float:
        try:
            return float(dataset.score_answer(answer, entry))
        except Exception:
            return 0.0

    return judge
