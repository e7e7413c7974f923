"""Rewards that look at how likely the policy found its own completion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from polyopt.batch import Batch
from polyopt.groups import group_count, group_max, group_rank, group_sum
from polyopt.parts import part
from polyopt.rollout_table import RolloutTable

PerRollout = Float[Tensor, " R"]


def shape_scored(batch: Batch, shape: Callable[[Batch, RolloutTable], PerRollout]) -> Batch:
    """The batch with other rewards for its scored rollouts, which alone are compared."""
    known = batch.scored
    scored = batch.select(known)
    table = RolloutTable.of(scored)
    rewards = batch.rewards.clone()
    rewards[known] = table.rows(shape(scored, table)).to(rewards.dtype)
    return batch.replace(rewards=rewards)


def confidence(batch: Batch, table: RolloutTable) -> PerRollout:
    """Geometric mean of each rollout's token probabilities `exp(logp_old)`; 0 of no tokens."""
    mean = table.token_mean(batch["logp_old"])
    return torch.where(table.lengths > 0, mean.exp(), torch.zeros_like(mean))


@part("rewards.shaping", needs={"logp_old"})
@dataclass(frozen=True)
class ConfidenceCalibration:
    """r_i -= (1 - r_i) p_i / (D_g - p_i) / G: wrong rollouts pay, the more confident the more.

    p_i is the geometric mean of the token probabilities. D_g = 2 max_j p_j, or in a group with a
    success max(D_imp, 2 max_j p_j) with D_imp = 1 / mean_j(r_j / p_j). Right rollouts keep 1; the
    penalty stays within 1/G. Rewards lie in [0, 1]. LENS, "Don't Waste Mistakes: Leveraging
    Negative RL-Groups via Confidence Reweighting", arXiv 2510.08696, sections 4 to 6.
    """

    def __call__(self, batch: Batch) -> Batch:
        """The batch with calibrated rewards."""
        return shape_scored(batch, self.calibrated)

    def calibrated(self, batch: Batch, table: RolloutTable) -> PerRollout:
        """Calibrated reward of each rollout."""
        p = confidence(batch, table)
        odds = p / (self.difficulty(batch, table) - p).clamp(min=1e-12)
        size = group_count(table.group, table.rewards)
        return table.rewards - (1 - table.rewards) * odds / size

    def difficulty(self, batch: Batch, table: RolloutTable) -> PerRollout:
        """D of each rollout's group; rollouts without tokens are in no mean."""
        p = confidence(batch, table)
        live = p > 0
        evidence = torch.where(live, table.rewards / torch.where(live, p, 1.0), 0.0)
        mean = group_sum(evidence, table.group) / group_sum(live.to(p.dtype), table.group)
        least = 2 * group_max(p, table.group)
        won = group_max(evidence, table.group) > 0
        return torch.where(won, torch.maximum(1 / torch.where(won, mean, 1.0), least), least)


@part("rewards.shaping", needs={"logp_old"})
@dataclass(frozen=True)
class UnlikelinessReward:
    """r_i *= 1 - beta rank_i / G, rank 0 for the group's least likely rollout.

    Likelihood is the mean of `logp_old` over the rollout's tokens, as in the authors' code (the
    paper ranks by the probability of the whole sequence); ties go by rollout id. Among right
    rollouts the likeliest earns least. "Rewarding the Unlikely: Lifting GRPO Beyond Distribution
    Sharpening", arXiv 2506.02355.

    Attributes:
        beta: Share of its reward that the likeliest loses, nearly.
    """

    beta: float = 0.25

    def __call__(self, batch: Batch) -> Batch:
        """The batch with shaped rewards."""
        return shape_scored(batch, self.shaped)

    def shaped(self, batch: Batch, table: RolloutTable) -> PerRollout:
        """Shaped reward of each rollout."""
        size = group_count(table.group, table.rewards)
        return table.rewards * (1 - self.beta * self.ranks(batch, table) / size)

    def ranks(self, batch: Batch, table: RolloutTable) -> Int[Tensor, " R"]:
        """Place of each rollout in its group by likelihood, ascending from 0."""
        return group_rank(table.token_mean(batch["logp_old"]), table.group)
