"""What a task is: training and held-out prompts, and the reward terms that judge completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from polyopt.batch import Prompt
from polyopt.rewards.protocol import RewardTerm


@dataclass(frozen=True)
class Task:
    """Prompts and what their answers are checked with.

    Attributes:
        name: What the task was asked for as (`"reasoning_gym:chain_sum"`).
        train: Training prompts.
        heldout: Held-out prompts; no problem is in both.
        rewards: Reward terms; the total reward is their weighted sum.
        system: System message put before every prompt that is a chat; None for none.
    """

    name: str
    train: Sequence[Prompt]
    heldout: Sequence[Prompt]
    rewards: tuple[RewardTerm, ...] = field(default_factory=tuple)
    system: str | None = None

    @property
    def accuracy_term(self) -> RewardTerm | None:
        """The first term whose 1 means "right"."""
        return next((term for term in self.rewards if term.correctness), None)

    def with_rewards(self, rewards: Sequence[RewardTerm]) -> Task:
        """The same prompts judged by other terms."""
        return replace(self, rewards=tuple(rewards))
