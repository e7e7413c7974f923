"""What a reward function, a reward term and a reward shaping are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from polyopt.batch import Batch, Prompt

RewardFunction = Callable[[Sequence[Prompt], Sequence[str]], Sequence[Any]]
"""(prompts [N], completions [N]) -> N rewards; None says "I can't score this one"."""


@dataclass(frozen=True)
class RewardTerm:
    """One named reward of a task.

    Attributes:
        name: What it is called in logs.
        function: Scores completions.
        weight: Its factor in the total reward; 0 only logs it.
        correctness: Whether 1 means "right": the first such term is the run's accuracy.
    """

    name: str
    function: RewardFunction
    weight: float = 1.0
    correctness: bool = False


class RewardShaping(Protocol):
    """Changes rewards once they are known (length penalties, KL in the reward, ...)."""

    def __call__(self, batch: Batch) -> Batch:
        """The batch with other `rewards` and, where credit is dense, `token_rewards` [N, T]."""
