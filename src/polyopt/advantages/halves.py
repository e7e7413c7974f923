"""Halves: a group sorted by a metric and cut in two, so that rollouts are judged by condition."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from polyopt.batch import Batch
from polyopt.groups import group_count, group_flat, group_rank, group_sum
from polyopt.parts import part
from polyopt.rollout_table import RolloutTable

Advantages = Float[Tensor, "N T"]
PerRollout = Float[Tensor, " R"]


@dataclass(frozen=True)
class Halves:
    """Each rollout's half of its group, and both halves' mean rewards.

    Attributes:
        high: Whether the rollout is above the first floor(n / 2) by metric (ties by rollout id).
        own: Mean reward of its own half.
        other: Mean reward of the other half.
    """

    high: Bool[Tensor, " R"]
    own: PerRollout
    other: PerRollout


def halves(metric: PerRollout, table: RolloutTable) -> Halves:
    """Cut each group in two; in a group of one both means are 0."""
    size = group_count(table.group, table.rewards)
    high = group_rank(metric, table.group) >= (size / 2).floor()
    low_mean, high_mean = (_mean_of(part_of, table) for part_of in (~high, high))
    flat = group_flat(table.rewards, table.group) & ~table.alone
    own = torch.where(flat, table.rewards, torch.where(high, high_mean, low_mean))
    other = torch.where(flat, table.rewards, torch.where(high, low_mean, high_mean))
    return Halves(high, own.masked_fill(table.alone, 0.0), other)


def _mean_of(chosen: Bool[Tensor, " R"], table: RolloutTable) -> PerRollout:
    """Mean reward of the chosen rollouts of each group; 0 of none."""
    weight = chosen.to(table.rewards.dtype)
    total = group_sum(weight * table.rewards, table.group)
    return total / group_sum(weight, table.group).clamp(min=1)


@part("advantages.estimator", needs={"entropy"}, min_rollouts=2)
@dataclass(frozen=True)
class EntropyHalves:
    """A = mu inter + (1 - mu) intra: compared with the other half by entropy, and with the own.

    inter = r - alpha m_low + beta in the high half, alpha r - m_high - beta in the low half;
    intra = r - mean of the own half. Halves by mean token entropy. With mu = 1/2, alpha = 1 and
    even n it is r - mean_g. CANON, "Conditional Advantage Estimation for Reinforcement Learning in
    Large Reasoning Models", arXiv 2509.23962, eq. 5 and 8 (placement of alpha as in its code).

    Attributes:
        mu: Share of the comparison with the other half.
        alpha: Tilts against one half where it isn't 1.
        beta: Bonus of the high half.
        lone: Share of its credit that a group of one keeps.
    """

    mu: float = 1.0
    alpha: float = 1.0
    beta: float = 0.0
    lone: float = 0.0

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        table = RolloutTable.of(batch)
        cut = halves(self.metric(batch, table), table)
        inter = self.against_other_half(table.rewards, cut)
        credit = self.mu * inter + (1 - self.mu) * (table.rewards - cut.own)
        return table.spread(torch.where(table.alone, self.lone * credit, credit))

    def metric(self, batch: Batch, table: RolloutTable) -> PerRollout:
        """What the group is sorted by: mean token entropy in nats."""
        return table.token_mean(batch["entropy"])

    def against_other_half(self, rewards: PerRollout, cut: Halves) -> PerRollout:
        """The inter-group term."""
        above = rewards - self.alpha * cut.other + self.beta
        return torch.where(cut.high, above, self.alpha * rewards - cut.other - self.beta)


@part("advantages.estimator", min_rollouts=2)
@dataclass(frozen=True)
class LengthHalves(EntropyHalves):
    """A = mu inter + (1 - mu) intra with halves by length, where alpha stands the other way round.

    inter = alpha r - m_low + beta in the long half, r - alpha m_high - beta in the short half: an
    alpha below 1 favours short rollouts. CANON, arXiv 2509.23962, eq. 5 and 8, as in its code.
    """

    def metric(self, batch: Batch, table: RolloutTable) -> PerRollout:
        """What the group is sorted by: sampled tokens."""
        return table.lengths

    def against_other_half(self, rewards: PerRollout, cut: Halves) -> PerRollout:
        """The inter-group term."""
        above = self.alpha * rewards - cut.other + self.beta
        return torch.where(cut.high, above, rewards - self.alpha * cut.other - self.beta)
