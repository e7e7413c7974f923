"""Credit for groups whose rewards don't differ, where every z-score is 0."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from polyopt.batch import Batch
from polyopt.groups import group_deviation, group_flat, group_max, group_z_score
from polyopt.parts import part
from polyopt.rollout_table import RolloutTable

Advantages = Float[Tensor, "N T"]


@part("advantages.shaping", needs={"entropy"})
@dataclass(frozen=True)
class EntropyForSilentGroups:
    """Groups of equal rewards learn by entropy H_t: right ones alpha H_t, wrong ones
    -alpha (max_t H - H_t), the maximum over the rollout's own sampled tokens.

    A reward above 0 is right. Other groups keep their credit; a group of one has equal rewards.
    RL-ZVP, "No Prompt Left Behind: Exploiting Zero-Variance Prompts in LLM Reinforcement Learning
    via Entropy-Guided Advantage Shaping", arXiv 2509.21880. The paper's H is the current policy's;
    here it is the sampler's, which is the same at the first optimizer step.

    Attributes:
        alpha: Credit per nat.
    """

    alpha: float = 0.1

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        table = RolloutTable.of(batch)
        entropy = batch["entropy"].masked_fill(~batch.mask, 0.0).to(advantages.dtype)
        peak = table.rows(self._peaks(entropy, table))[:, None]
        right = (batch.rewards > 0)[:, None]
        credit = self.alpha * torch.where(right, entropy, entropy - peak)
        silent = table.rows(group_flat(table.rewards, table.group))[:, None]
        return torch.where(silent & batch.mask, credit, advantages)

    def _peaks(self, entropy: Advantages, table: RolloutTable) -> Float[Tensor, " R"]:
        """Largest entropy of each rollout's sampled tokens (entropies aren't negative)."""
        rows = torch.cat([entropy, entropy.new_zeros(len(entropy), 1)], dim=1).amax(1)
        return group_max(rows, table.of_row)[table.first_row]


@part("advantages.estimator", min_rollouts=2, claims={"zero-on-equal-rewards"})
@dataclass(frozen=True)
class CentredFailures:
    """Z-score where a rollout of the group has a positive reward; else weight (r_i - mean_g).

    Failed groups differ only by what was subtracted for confidence, which a z-score would blow up.
    LENS, "Don't Waste Mistakes: Leveraging Negative RL-Groups via Confidence Reweighting",
    arXiv 2510.08696, sections 4 to 6.

    Attributes:
        weight: Weight of groups without any success.
        eps: Added to the deviation (sample).
    """

    weight: float = 0.25
    eps: float = 1e-6

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        table = RolloutTable.of(batch)
        failed = group_max(table.rewards, table.group) <= 0
        centred = self.weight * group_deviation(table.rewards, table.group)
        z_score = group_z_score(table.rewards, table.group, self.eps)
        return table.spread(torch.where(failed, centred, z_score))
