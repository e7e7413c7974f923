"""Group statistics over tokens: a long rollout counts as often as it has tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from polyopt.batch import Batch
from polyopt.groups import group_max, group_min, group_sum, group_z_score
from polyopt.parts import part
from polyopt.rollout_table import RolloutTable

Advantages = Float[Tensor, "N T"]
PerRollout = Float[Tensor, " R"]


@part("advantages.estimator", min_rollouts=2, claims={"zero-on-equal-rewards"})
@dataclass(frozen=True)
class TokenGroupAverage:
    """A_i = (r_i - mean) / (std + eps), mean and std (with n) over all tokens of the group.

    Each rollout's reward is repeated over its sampled tokens. A group in which some |A| reaches
    `largest` falls back to the z-score over rollouts (n - 1).

    HAPO, "Heterogeneous Adaptive Policy Optimization" (2025): token-level group average.

    Attributes:
        eps: Added to either deviation.
        largest: |A| from which a group falls back.
        lone: Share of its reward that a group of one gets as its advantage (the code: 1).
    """

    eps: float = 1e-6
    largest: float = 5.0
    lone: float = 0.0

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        table = RolloutTable.of(batch)
        score = self.token_scores(table)
        reached = torch.where(table.lengths > 0, score.abs(), 0.0)
        coarse = group_max(reached, table.group) >= self.largest
        by_rollout = group_z_score(table.rewards, table.group, self.eps)
        score = torch.where(coarse, by_rollout, score)
        alone = self.lone * table.rewards / (1 + self.eps)
        return table.spread(torch.where(table.alone, alone, score))

    def token_scores(self, table: RolloutTable) -> PerRollout:
        """(r - mean) / (std + eps) over the group's tokens; 0 where they all have one reward."""
        rewards, group, lengths = table.rewards, table.group, table.lengths
        tokens = group_sum(lengths, group).clamp(min=1)
        mean = group_sum(lengths * rewards, group) / tokens
        centred = (rewards - mean).masked_fill(self._flat(table), 0.0)
        std = (group_sum(lengths * centred.square(), group) / tokens).sqrt()
        return centred / (std + self.eps)

    def _flat(self, table: RolloutTable) -> Bool[Tensor, " R"]:
        """Rollouts of groups whose tokens all have one reward."""
        silent = table.lengths == 0
        low = group_min(table.rewards.masked_fill(silent, torch.inf), table.group)
        high = group_max(table.rewards.masked_fill(silent, -torch.inf), table.group)
        return low >= high
