"""Credit weighted by the policy's entropy: per token, or as each rollout's mean."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from polyopt.advantages.statistics import spread
from polyopt.advantages.trajectories import success
from polyopt.batch import Batch
from polyopt.groups import group_mean, group_size, group_z_score, subgroups
from polyopt.parts import part
from polyopt.rollout_table import RolloutTable

Advantages = Float[Tensor, "N T"]

LEAST_ENTROPY = 1e-6
"""Entropies in a denominator are at least this, in nats (ours)."""


def rollout_entropy(batch: Batch) -> Float[Tensor, " N"]:
    """H_i: mean entropy in nats of the tokens that each row's rollout sampled."""
    table = RolloutTable.of(batch)
    return table.rows(table.token_mean(batch["entropy"]))


def share_of_mean(
    values: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"], index: Int[Tensor, " N"]
) -> Float[Tensor, "N T"]:
    """x_{i,t} over the mean of x_{k,t} over the rows of the group that are still alive at t.

    1 where that mean is 0; 0 outside the mask.
    """
    alive = mask.to(values.dtype)
    total = values.new_zeros(group_size(index), values.shape[1])
    total = total.index_add(0, index, values.masked_fill(~mask, 0.0))
    count = torch.zeros_like(total).index_add(0, index, alive)
    mean = (total / count.clamp(min=1))[index]
    return torch.where(mean > 0, values / mean, 1.0).masked_fill(~mask, 0.0)


def weighted_outcome(
    entropy: Float[Tensor, "N T"],
    mask: Bool[Tensor, "N T"],
    right: Bool[Tensor, " N"],
    index: Int[Tensor, " N"],
    base: float,
    weight: float,
) -> Float[Tensor, "N T"]:
    """base + weight H / mean(H) where right, -(base + weight H^-1 / mean(H^-1)) where wrong.

    Means are over the rows of the same `index`, place by place.
    """
    entropy = entropy.masked_fill(~mask, 0.0)
    doubt = share_of_mean(entropy, mask, index)
    confidence = share_of_mean(1 / entropy.clamp(min=LEAST_ENTROPY), mask, index)
    reward = torch.where(right[:, None], base + weight * doubt, -base - weight * confidence)
    return reward.masked_fill(~mask, 0.0)


@part("advantages.estimator", needs={"entropy"}, min_rollouts=2)
@dataclass(frozen=True)
class EntropyWeightedTokens:
    """Z-score, within the right and within the wrong tokens of a group, of entropy-shaped rewards.

    r_t = base + weight H_t / mean H_t                 for right completions,
    r_t = -(base + weight (1/H_t) / mean(1/H_t))       for wrong ones,

    the means taken at each place t over the completions of the class that reach it. So doubt is
    rewarded where it led to success, and confidence punished where it led to failure; since each
    class is centred by itself, a token below its class's mean gets negative credit even in a right
    completion. GTPO, arXiv 2508.04349. The deviation is the population's (assumed).

    Attributes:
        base: alpha_1, the reward that every token shares.
        weight: alpha_2, the weight of the entropy.
        eps: Added to the deviation.
    """

    base: float = 1.0
    weight: float = 0.1
    eps: float = 1e-8

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        rewards, mask = self.token_rewards(batch), batch.mask
        token_class = outcome_class(batch)[:, None].expand(mask.shape)[mask]
        index = torch.unique(token_class, return_inverse=True)[1]
        score = group_z_score(rewards[mask], index, self.eps, ddof=0)
        return torch.zeros_like(rewards).masked_scatter(mask, score)

    def token_rewards(self, batch: Batch) -> Float[Tensor, "N T"]:
        """r_t."""
        classes = outcome_class(batch)
        numbers = (self.base, self.weight)
        return weighted_outcome(batch["entropy"], batch.mask, success(batch), classes, *numbers)


@part("advantages.estimator", needs={"entropy"}, min_rollouts=2)
@dataclass(frozen=True)
class EntropyWeightedRollouts:
    """The same for whole rollouts: H is the mean entropy of the completion.

    GRPO-S, arXiv 2508.04349 (by analogy with GTPO; its ratio is the mean of the tokens' ratios).

    Attributes:
        base: beta_1, the reward that every rollout of a class shares.
        weight: beta_2, the weight of the entropy.
        eps: Added to the deviation.
    """

    base: float = 1.0
    weight: float = 0.1
    eps: float = 1e-8

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        table = RolloutTable.of(batch)
        rewards = table.column(self.rollout_rewards(batch))
        classes = subgroups(table.column(success(batch)), table.group)
        return table.spread(group_z_score(rewards, classes, self.eps, ddof=0))

    def rollout_rewards(self, batch: Batch) -> Float[Tensor, " N"]:
        """r_i of each row's rollout."""
        table = RolloutTable.of(batch)
        right = table.column(success(batch))
        entropy = table.token_mean(batch["entropy"])[:, None]
        everywhere = torch.ones_like(entropy, dtype=torch.bool)
        classes, numbers = subgroups(right, table.group), (self.base, self.weight)
        rewards = weighted_outcome(entropy, everywhere, right, classes, *numbers)
        return table.rows(rewards[:, 0])


def outcome_class(batch: Batch) -> Int[Tensor, " N"]:
    """Rows counted by group and by whether they are right."""
    return subgroups(success(batch), batch.group_index)


@part("advantages.shaping", needs={"entropy"})
@dataclass(frozen=True)
class ConfidenceScale:
    """A_i *= 2 - H_i / mean_g(H): sure completions count more, unsure ones less.

    Over twice the group's mean entropy the sign turns, as the formula says, unless `least` holds
    the factor up. A group without any entropy keeps its advantages. EAR ("Adv-Res") of ETTRL,
    arXiv 2508.11356.

    Attributes:
        least: Smallest factor; None for none.
    """

    least: float | None = None

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        return advantages * self.scale(batch)[:, None]

    def scale(self, batch: Batch) -> Float[Tensor, " N"]:
        """The factor of each row."""
        table = RolloutTable.of(batch)
        entropy = table.token_mean(batch["entropy"])
        mean = group_mean(entropy, table.group)
        scale = torch.where(mean > 0, 2 - entropy / mean, 1.0)
        return table.rows(scale if self.least is None else scale.clamp(min=self.least))


@part("advantages.shaping")
@dataclass(frozen=True)
class BoundedAdvantage:
    """A held to [-bound, bound].

    EAR's simpler variant ("Adv-Clip"), ETTRL, arXiv 2508.11356; its bound isn't stated in the
    sources at hand.
    """

    bound: float = 1.0

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        return advantages.clamp(-self.bound, self.bound)


@part("advantages.shaping", needs={"entropy"})
@dataclass(frozen=True)
class EntropyGate:
    """A_i -= scale H_i, and A_i = 0 where the rollout's mean entropy H_i exceeds `threshold`.

    Even a group of equal rewards is pushed towards less entropy. GTPO (group-relative
    trajectory-based policy optimization), arXiv 2508.03772; ln 2 is the threshold of its theory,
    0.7 that of its code.

    Attributes:
        scale: Advantage taken off per nat of mean entropy.
        threshold: Mean entropy in nats from which on a rollout is left out.
    """

    scale: float = 0.1
    threshold: float = 0.7

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        held = advantages - spread(self.scale * rollout_entropy(batch), batch.mask)
        return torch.where(self.kept(batch)[:, None], held, 0.0)

    def kept(self, batch: Batch) -> Bool[Tensor, " N"]:
        """Rows whose rollout is sure enough to train."""
        return rollout_entropy(batch) <= self.threshold
