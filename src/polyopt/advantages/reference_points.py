"""Reference points other than the group's mean reward: what a rollout's reward is compared with.

    A_i = (r_i - b) / scale

`b` is a length-weighted mean, a quantile, a mean with rewards nobody got, or a constant. Where
several of these are defined for a group of one, such a group gives 0; `lone=1` passes its reward
on, as verl's ports do.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from polyopt.batch import Batch
from polyopt.errors import RecipeError
from polyopt.groups import (
    group_count,
    group_deviation,
    group_flat,
    group_mean,
    group_quantile,
    group_quantile_step,
    group_std,
    group_sum,
)
from polyopt.parts import part
from polyopt.rewards.noise import check_rates
from polyopt.rollout_table import RolloutTable

Advantages = Float[Tensor, "N T"]
PerRollout = Float[Tensor, " R"]


@part("advantages.estimator", min_rollouts=2, claims={"zero-on-equal-rewards"})
@dataclass(frozen=True)
class LengthWeightedBaseline:
    """A_i = r_i - b_g, b_g = sum_i len_i r_i / sum_i len_i: the baseline of least variance.

    Lengths in sampled tokens stand for squared gradient norms. With equal lengths it is the group
    mean. OPO, "On-Policy RL with Optimal Reward Baseline", arXiv 2505.23585.

    Attributes:
        lone: Share of its reward that a group of one gets as its advantage.
    """

    lone: float = 0.0

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        table = RolloutTable.of(batch)
        credit = table.rewards - self.baseline(table)
        return table.spread(torch.where(table.alone, self.lone * table.rewards, credit))

    def baseline(self, table: RolloutTable) -> PerRollout:
        """b_g; the plain mean of a group without a single token. Exact where rewards are equal."""
        mean = group_mean(table.rewards, table.group)
        weight = group_sum(table.lengths, table.group)
        shift = table.lengths * group_deviation(table.rewards, table.group)
        baseline = mean + group_sum(shift, table.group) / weight.clamp(min=1)
        return torch.where(group_flat(table.rewards, table.group), table.rewards, baseline)


@part("advantages.estimator", min_rollouts=2, claims={"zero-on-equal-rewards"})
@dataclass(frozen=True)
class QuantileBaseline:
    """A_i = (r_i - Q_K) / (std_g + eps), Q_K the inverse-CDF quantile of the group's rewards.

    With rewards 0 and 1: a group whose success rate is at most 1 - K credits its successes only,
    an easier one blames its failures only. QAE, "Quantile Advantage Estimation for Entropy-Safe
    Reasoning", arXiv 2509.22611; its code interpolates, see `InterpolatedQuantileBaseline`.

    Attributes:
        level: K; larger ones keep entropy up.
        eps: Added to the deviation (sample, about the mean).
        lone: Share of its reward that a group of one gets as its advantage.
    """

    level: float = 0.4
    eps: float = 1e-6
    lone: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.level < 1:
            raise RecipeError(f"quantile level {self.level}: it must lie between 0 and 1.")

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        table = RolloutTable.of(batch)
        scale = torch.where(table.alone, 1.0, group_std(table.rewards, table.group)) + self.eps
        return table.spread((table.rewards - self.baseline(table)) / scale)

    def baseline(self, table: RolloutTable) -> PerRollout:
        """Q_K; of a group of one, what `lone` leaves of its reward."""
        alone = (1 - self.lone) * table.rewards
        return torch.where(table.alone, alone, self.quantile(table))

    def quantile(self, table: RolloutTable) -> PerRollout:
        """Q_K of each rollout's group."""
        return group_quantile_step(table.rewards, table.group, self.level)


@part("advantages.estimator", min_rollouts=2, claims={"zero-on-equal-rewards"})
@dataclass(frozen=True)
class InterpolatedQuantileBaseline(QuantileBaseline):
    """A_i = (r_i - Q_K) / (std_g + eps), Q_K linear between the rewards around place K (n - 1).

    Where that place falls between a 0 and a 1, all rollouts get credit. The authors' code for QAE,
    arXiv 2509.22611.
    """

    def quantile(self, table: RolloutTable) -> PerRollout:
        """Q_K of each rollout's group."""
        interpolated = group_quantile(table.rewards, table.group, self.level)
        flat = group_flat(table.rewards, table.group)
        return torch.where(flat, table.rewards, interpolated)


@part("advantages.estimator", min_rollouts=2)
@dataclass(frozen=True)
class VirtualRewards:
    """A_i = (r_i - mean') / (std' + eps) over the group and `count` imagined rewards `best`.

    So a group that failed altogether is pushed down, and one that fully succeeded gets 0. Rewards
    must not exceed `best`. NGRPO, "Negative-enhanced Group Relative Policy Optimization",
    arXiv 2509.18851.

    Attributes:
        best: Reward of an imagined success.
        count: Imagined rollouts per group.
        eps: Added to the deviation (sample).
        lone: Share of its reward that a group of one gets as its advantage.
    """

    best: float = 1.0
    count: int = 1
    eps: float = 1e-6
    lone: float = 0.0

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        table = RolloutTable.of(batch)
        n = group_count(table.group, table.rewards)
        deviation = group_deviation(table.rewards, table.group)
        gap = self.best - (table.rewards - deviation)
        drop = self.count / (n + self.count) * gap
        squares = group_sum(deviation.square(), table.group) + n * drop * gap
        std = (squares / (n + self.count - 1).clamp(min=1)).sqrt()
        alone = self.lone * table.rewards / (1 + self.eps)
        return table.spread(torch.where(table.alone, alone, (deviation - drop) / (std + self.eps)))


@part("advantages.estimator")
@dataclass(frozen=True)
class ConstantBaseline:
    """A_i = (r_i - value) / scale: no group, no statistics.

    With rewards 0 and 1, value 0 credits successes only (PSR) and value 1 blames failures only
    (NSR): "The Surprising Effectiveness of Negative Reinforcement in LLM Reasoning",
    arXiv 2506.01347.
    """

    value: float = 0.0
    scale: float = 1.0

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        table = RolloutTable.of(batch)
        return table.spread((table.rewards - self.value) / self.scale)


@part("advantages.estimator")
@dataclass(frozen=True)
class WeightedOutcomes:
    """A_i = `right` where r_i = 1, `wrong` where r_i = 0, and r_i itself for any other reward.

    W-REINFORCE, "The Surprising Effectiveness of Negative Reinforcement in LLM Reasoning",
    arXiv 2506.01347.

    Attributes:
        right: Weight of successes.
        wrong: Weight of failures, negative.
    """

    right: float = 0.1
    wrong: float = -1.0

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        table = RolloutTable.of(batch)
        weighed = torch.where(table.rewards == 1, self.right, table.rewards)
        return table.spread(torch.where(table.rewards == 0, self.wrong, weighed))


@part("advantages.estimator")
@dataclass(frozen=True)
class ForwardCorrection:
    """A_i = (R_i - (1 - rho1)) / scale: right answers have mean 0 whatever the verifier rejects.

    The expected update is parallel to that of a perfect verifier. Only rho1 matters, but for the
    scale: 1 - rho0 - rho1 unless given. Not to be centred in the group: for rewards 0 and 1 that
    undoes it. With rho1 = 0 it only blames rejected rollouts (NSR, arXiv 2506.01347).
    "Reinforcement Learning with Verifiable yet Noisy Rewards under Imperfect Verifiers",
    arXiv 2510.00915, appendix B (its algorithm 3 contradicts that appendix).

    Attributes:
        accepts_wrong: rho0, probability that a wrong answer gets 1.
        rejects_right: rho1, probability that a right answer gets 0.
        scale: Divisor; None takes 1 - rho0 - rho1.
    """

    accepts_wrong: float = 0.1
    rejects_right: float = 0.2
    scale: float | None = None

    def __post_init__(self) -> None:
        check_rates(self.accepts_wrong, self.rejects_right)

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        scale = 1 - self.accepts_wrong - self.rejects_right if self.scale is None else self.scale
        return ConstantBaseline(1 - self.rejects_right, scale)(advantages, batch)


@part("advantages.shaping", needs={"reference_reward"})
@dataclass(frozen=True)
class AdvantageMomentum:
    """A_i += clip(r_i - r_ref_i, low, high): how far the policy has come from its reference.

    r_ref_i is the column `reference_reward` [N], the reward of the reference policy's completion
    that is paired with rollout i. AAPO, "Enhancing the Reasoning Capabilities of LLMs with
    Advantage Momentum", arXiv 2505.14264.

    Attributes:
        low: Least momentum.
        high: Most momentum.
    """

    low: float = -0.2
    high: float = 0.28

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]; unchanged where the reference's completion couldn't be scored."""
        table = RolloutTable.of(batch)
        lead = (table.rewards - table.column(batch["reference_reward"])).nan_to_num(0.0)
        return advantages + table.spread(lead.clamp(self.low, self.high))
