"""Thoughts with several answers each: credit for the thought by the mean of its answers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from polyopt.batch import Batch
from polyopt.groups import group_first, group_flat, group_mean, group_z_score, subgroups
from polyopt.parts import part
from polyopt.rollout_table import RolloutTable

Advantages = Float[Tensor, "N T"]
PerRollout = Float[Tensor, " R"]


@part(
    "advantages.estimator",
    needs={"thought", "thought_tokens"},
    min_rollouts=2,
    claims={"zero-on-equal-rewards"},
)
@dataclass(frozen=True)
class ThoughtAndAnswer:
    """Thought tokens get (V_k - mean V) / (std V + eps) over the prompt's thoughts, V_k the mean
    reward of the answers to thought k; answer tokens the reward's z-score over all its answers.

    A rollout is one answer with its thought. `thought` [N] says which thought (ids within a
    prompt), `thought_tokens` [N, T] which tokens belong to it. Deviations are over n (our choice).
    GRPO-MA, "Multi-Answer Generation in GRPO for Stable and Efficient Chain-of-Thought Training",
    arXiv 2509.24494 (equations from memory).

    Attributes:
        eps: Added to the deviations.
    """

    eps: float = 1e-6

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        table = RolloutTable.of(batch)
        answer = group_z_score(table.rewards, table.group, self.eps, ddof=0)
        inside = batch["thought_tokens"].bool()
        return torch.where(inside, table.spread(self.thought_credit(batch)), table.spread(answer))

    def thought_values(self, batch: Batch) -> PerRollout:
        """V of each rollout's thought."""
        table = RolloutTable.of(batch)
        return group_mean(table.rewards, self._thoughts(batch, table))

    def thought_credit(self, batch: Batch) -> PerRollout:
        """Credit of each rollout's thought; every thought counts once, however many its answers."""
        table, values = RolloutTable.of(batch), self.thought_values(batch)
        first = group_first(self._thoughts(batch, table))
        heads, thought = torch.unique(first, return_inverse=True)
        group = torch.unique(table.group[heads], return_inverse=True)[1]
        score = group_z_score(values[heads], group, self.eps, ddof=0)[thought]
        return torch.where(group_flat(table.rewards, table.group), 0.0, score)

    def _thoughts(self, batch: Batch, table: RolloutTable) -> Tensor:
        return subgroups(table.column(batch["thought"]), table.group)
