"""The rewards field of a recipe."""

from __future__ import annotations

from dataclasses import dataclass

from polyopt.rewards.protocol import RewardShaping


@dataclass(frozen=True)
class Rewards:
    """The rewards field of a recipe. The terms themselves belong to the task.

    Attributes:
        shaping: Chain applied to the weighted total of the task's terms.
    """

    shaping: tuple[RewardShaping, ...] = ()
