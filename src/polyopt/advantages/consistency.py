"""Consistency: a local advantage within the prompt, and a global one between prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from polyopt.batch import Batch
from polyopt.groups import (
    group_count,
    group_mean,
    group_z_score,
    one_group,
    per_group,
    subgroups,
)
from polyopt.parts import part
from polyopt.rollout_table import RolloutTable

Advantages = Float[Tensor, "N T"]
PerRollout = Float[Tensor, " R"]


@part(
    "advantages.estimator",
    needs={"answer_class"},
    provides={"global_advantages", "local_weight"},
    min_rollouts=2,
    claims={"zero-on-equal-rewards"},
)
@dataclass(frozen=True)
class LocalAndGlobal:
    """A = z-score within the group; adds what `BlendedClip` blends it with.

    With H_g the entropy in bits of the prompt's answers (`answer_class`), n its rollouts and
    lam = (1 - 1/n) / log2 n:
    `global_advantages` = z-score over prompts of mean_g(r) (1 - lam H_g),
    `local_weight` = sigmoid(sharpness (H_g - midpoint)).
    A single prompt has global advantage 0 (the authors' code gives NaN), a single rollout H = 0.

    COPO, "Consistency-Aware Policy Optimization", arXiv 2508.04138.

    Attributes:
        eps: Added to both deviations (sample).
        midpoint: Entropy in bits at which local and global weigh the same.
        sharpness: Slope of the weight per bit.
    """

    eps: float = 1e-6
    midpoint: float = 0.5
    sharpness: float = 1.0

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        table = RolloutTable.of(batch)
        return table.spread(group_z_score(table.rewards, table.group, self.eps))

    def provide(self, batch: Batch) -> Mapping[str, Tensor]:
        """`global_advantages` and `local_weight`, [N, T]."""
        table = RolloutTable.of(batch)
        rewards = per_group(self.global_rewards(batch), table.group)
        score = group_z_score(rewards, one_group(rewards), self.eps)[table.group]
        weight = torch.sigmoid(self.sharpness * (self.answer_entropy(batch) - self.midpoint))
        return {"global_advantages": table.spread(score), "local_weight": table.spread(weight)}

    def answer_entropy(self, batch: Batch) -> PerRollout:
        """H of each rollout's group: -sum_a p_a log2(p_a + 1e-8)."""
        table = RolloutTable.of(batch)
        answer = subgroups(table.column(batch["answer_class"]), table.group)
        share = group_count(answer, table.rewards) / group_count(table.group, table.rewards)
        return group_mean(-torch.log2(share + 1e-8), table.group)

    def global_rewards(self, batch: Batch) -> PerRollout:
        """mean_g(r) (1 - lam H_g) of each rollout's group."""
        table = RolloutTable.of(batch)
        size = group_count(table.group, table.rewards)
        lam = torch.where(size > 1, (1 - 1 / size) / size.clamp(min=2).log2(), 0.0)
        return group_mean(table.rewards, table.group) * (1 - lam * self.answer_entropy(batch))
