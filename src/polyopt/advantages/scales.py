"""Scales: what a group's centred rewards are divided by or multiplied with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from polyopt.batch import Batch
from polyopt.errors import DataError, RecipeError
from polyopt.groups import (
    group_deviation,
    group_mean,
    group_std,
    one_group,
    per_group,
)
from polyopt.parts import part
from polyopt.rollout_table import RolloutTable

Advantages = Float[Tensor, "N T"]
PerRollout = Float[Tensor, " R"]


@part("advantages.estimator", min_rollouts=2, claims={"zero-on-equal-rewards"})
@dataclass(frozen=True)
class BatchScale:
    """A_i = (r_i - mean_g) / (std_batch + eps): centred in the group, scaled by the batch.

    The deviation (sample) is that of the raw rewards of all rollouts, so a nearly uniform group
    isn't blown up. Lite PPO, "Part I: Tricks or Traps? A Deep Dive into RL for LLM Reasoning",
    arXiv 2508.08221; TRL's `scale_rewards="batch"` with eps 1e-4.
    """

    eps: float = 1e-6

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        table = RolloutTable.of(batch)
        scale = group_std(table.rewards, one_group(table.rewards)) + self.eps
        return table.spread(group_deviation(table.rewards, table.group) / scale)


@part("advantages.shaping", min_rollouts=2)
@dataclass(frozen=True)
class SignalShare:
    """A *= 1 / (v + eps) / norm, v the share of groups whose rewards differ.

    Makes up for the gradient that groups without signal take away from the mean. GPG, "A Simple
    and Strong Reinforcement Learning Baseline for Model Reasoning", arXiv 2504.02546; the constants
    are the authors' code's.

    Attributes:
        eps: Added to the share.
        tolerance: Groups whose deviation (sample) is at most this have no signal.
        norm: F_norm, where it is a constant.
    """

    eps: float = 1e-5
    tolerance: float = 1e-5
    norm: float = 1.0

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        return advantages * (self.alpha(batch) / self.norm)

    def alpha(self, batch: Batch) -> Float[Tensor, ""]:
        """1 / (v + eps)."""
        table = RolloutTable.of(batch)
        live = group_std(table.rewards, table.group) > self.tolerance
        signal = per_group(live.to(table.rewards.dtype), table.group)
        return 1 / (signal.sum() / max(len(signal), 1) + self.eps)


@part("advantages.shaping")
@dataclass(frozen=True)
class RewardedShare:
    """A *= N / max(1, rollouts with a reward other than 0) / norm: verl's reading of GPG's alpha.

    It depends on accuracy where the paper's depends on which groups have signal.
    """

    norm: float = 1.0

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        return advantages * (self.alpha(batch) / self.norm)

    def alpha(self, batch: Batch) -> Float[Tensor, ""]:
        """N / rewarded rollouts."""
        rewards = RolloutTable.of(batch).rewards
        return len(rewards) / (rewards != 0).sum().clamp(min=1).to(rewards.dtype)


@part("advantages.estimator", min_rollouts=2, claims={"zero-on-equal-rewards"})
@dataclass(frozen=True)
class BetaScale:
    """A_i = w_g (r_i - p_g), w_g = min(top, 1 / f(p_g; alpha, beta)), f a Beta density.

    p_g is the group's mean reward after [low, high] is mapped to [0, 1]. Beta(a, b) fits the p_g of
    the batch by their moments; alpha = max(1, 1 + a/3), beta = max(1, 1 + b/3). With alpha = beta =
    1 it is the centred reward, with 3/2 it goes like the z-score. BNPO, "Beta Normalization Policy
    Optimization", arXiv 2506.02864. Where all p_g are equal (the authors' code gives NaN) or there
    is one group, alpha = beta = 1.

    Attributes:
        low: Least reward.
        high: Largest reward.
        top: Bound of the weight.
        lone: Share of its weighted reward that a group of one gets as its advantage.
    """

    low: float = 0.0
    high: float = 1.0
    top: float = 1e6
    lone: float = 0.0

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise RecipeError(f"rewards from low={self.low} to high={self.high}: low must be less.")

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T].

        Raises:
            DataError: A group whose rewards differ has a mean outside [low, high].
        """
        table = RolloutTable.of(batch)
        rewards, share = self.mapped(table)
        deviation = group_deviation(rewards, table.group)
        outside = ((share < 0) | (share > 1)) & (deviation != 0)
        if bool(outside.any()):
            mean = float(group_mean(table.rewards, table.group)[outside][0])
            raise DataError(
                f"a group's mean reward is {mean:.6g}, outside [{self.low:g}, {self.high:g}]: tell "
                "the beta scale the range of your rewards (--set beta-scale.low=..., high=...)."
            )
        alone = self.lone * rewards
        return table.spread(self.weights(table) * torch.where(table.alone, alone, deviation))

    def mapped(self, table: RolloutTable) -> tuple[PerRollout, PerRollout]:
        """Rewards and p_g in [0, 1]; p_g of a group of one is 0 where `lone` passes it on."""
        rewards = (table.rewards - self.low) / (self.high - self.low)
        share = group_mean(rewards, table.group)
        return rewards, torch.where(table.alone, (1 - self.lone) * share, share)

    def shape(self, table: RolloutTable) -> tuple[Tensor, Tensor]:
        """alpha and beta."""
        share = per_group(self.mapped(table)[1], table.group)
        one = share.new_ones(())
        if len(share) < 2:
            return one, one
        mu, variance = share.mean(), share.var()
        if variance < 1e-12:
            return one, one
        nu = mu * (1 - mu) / variance - 1
        return torch.maximum(one, 1 + nu * mu / 3), torch.maximum(one, 1 + nu * (1 - mu) / 3)

    def weights(self, table: RolloutTable) -> PerRollout:
        """w_g of each rollout's group."""
        alpha, beta = self.shape(table)
        p = self.mapped(table)[1].clamp(0, 1)
        norm = torch.lgamma(alpha) + torch.lgamma(beta) - torch.lgamma(alpha + beta)
        powers: Tensor = torch.special.xlogy(alpha - 1, p) + torch.special.xlogy(beta - 1, 1 - p)
        return (norm - powers).exp().clamp(max=self.top)


@part("advantages.estimator", min_rollouts=2, claims={"zero-on-equal-rewards"})
@dataclass(frozen=True)
class MixedScale:
    """A_i = lam z_i + (1 - lam) d_i, z_i = dev_i / (std_g + eps), d_i = dev_i / (mean_g + eps).

    lam = 4 q (1 - q) with q the share of rollouts whose reward is exactly `best`: uncertain groups
    use the z-score, certain ones the percentage by which a reward differs from the mean. Rewards
    must not be negative. MAPO, "Mixed Advantage Policy Optimization", arXiv 2509.18849.

    Attributes:
        eps: Added to deviation (sample) and mean.
        best: The reward that counts as certain success.
    """

    eps: float = 1e-6
    best: float = 1.0

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        table = RolloutTable.of(batch)
        deviation = group_deviation(table.rewards, table.group)
        z_score = deviation / (group_std(table.rewards, table.group) + self.eps)
        percent = deviation / (group_mean(table.rewards, table.group) + self.eps)
        lam = self.z_score_weight(table)
        return table.spread(lam * z_score + (1 - lam) * percent)

    def z_score_weight(self, table: RolloutTable) -> PerRollout:
        """lam of each rollout's group."""
        q = group_mean((table.rewards == self.best).to(table.rewards.dtype), table.group)
        return 4 * q * (1 - q)


@part("advantages.shaping", min_rollouts=2)
@dataclass(frozen=True)
class NoiseAwareWeight:
    """A *= w_g, the least-squares scale from an observed z-score to the true one under noise.

    A reward is flipped with probability p. With q the observed share of successes (reward above 0)
    and t = clip((q - p) / (1 - 2p), 0, 1) the true one,
    w = (1 - 2p) t (1 - t) / (sqrt(q (1 - q) + eps) sqrt(t (1 - t) + eps)): groups so one-sided that
    noise explains them get 0. S-GRPO, "Mitigating Think-Answer Mismatch in LLM Reasoning Through
    Noise-Aware Advantage Reweighting", arXiv 2508.05928.

    Attributes:
        flip: p, below 1/2.
        eps: Added inside the roots.
    """

    flip: float = 0.1
    eps: float = 1e-8

    def __post_init__(self) -> None:
        if not 0 <= self.flip < 0.5:
            raise RecipeError(f"flip probability {self.flip}: it must be at least 0 and below 0.5.")

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        table = RolloutTable.of(batch)
        return advantages * table.spread(self.weights(table))

    def weights(self, table: RolloutTable) -> PerRollout:
        """w of each rollout's group."""
        wins = (table.rewards > 0).to(table.rewards.dtype)
        q = group_mean(wins, table.group)
        t = ((q - self.flip) / (1 - 2 * self.flip)).clamp(0, 1)
        seen, true = (x * (1 - x) for x in (q, t))
        return (1 - 2 * self.flip) * true / ((seen + self.eps).sqrt() * (true + self.eps).sqrt())


@part("advantages.estimator", min_rollouts=2, claims={"zero-on-equal-rewards"})
@dataclass(frozen=True)
class PopulationZScore:
    """A_i = (r_i - mean_g) / (std_g + eps), std with n: two rollouts that differ get +1 and -1.

    2-GRPO, "It Takes Two: Your GRPO Is Secretly DPO", arXiv 2510.00977.

    Attributes:
        eps: Added to the deviation.
        lone: Share of its reward that a group of one gets as its advantage.
    """

    eps: float = 1e-6
    lone: float = 0.0

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        table = RolloutTable.of(batch)
        std = group_std(table.rewards, table.group, ddof=0)
        score = group_deviation(table.rewards, table.group) / (std + self.eps)
        alone = self.lone * table.rewards / (1 + self.eps)
        return table.spread(torch.where(table.alone, alone, score))
