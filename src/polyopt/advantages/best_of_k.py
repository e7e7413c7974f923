"""max@k: credit for the best of k rollouts instead of the mean of all.

    max@k = E[max of k independent rewards], estimated by (1 / C(n, k)) sum_{|I| = k} max_I r,
    its gradient by sum_i q_i grad log pi(y_i), q_i = (1 / C(n, k)) sum_{I containing i} max_I r.

With rewards sorted ascending (ranks from 1):
    q_i C(n, k) = C(i-1, k-1) r_i + sum_{j > i} C(j-2, k-2) r_j.

"The Best of N Worlds: Aligning Reinforcement Learning with Best-of-N Sampling via max@k
Optimisation", arXiv 2510.23393, eq. 8 to 10; on-policy form of Walder and Karkhanis, "Pass@K Policy
Optimization". With rewards 0 and 1 it is pass@k. In a group of fewer than k rollouts, k is their
number.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from polyopt.batch import Batch
from polyopt.errors import RecipeError
from polyopt.groups import (
    group_count,
    group_flat,
    group_order,
    group_rank,
    group_start,
    group_sum,
    group_z_score,
)
from polyopt.parts import part
from polyopt.rollout_table import RolloutTable

Advantages = Float[Tensor, "N T"]
PerRollout = Float[Tensor, " R"]
Index = Int[Tensor, " R"]


def choose_ratio(a: Tensor, b: Tensor, n: Tensor, k: Tensor) -> Tensor:
    """C(a, b) / C(n, k) in float64; C(a, b) is 0 outside 0 <= b <= a."""
    inside = (b >= 0) & (b <= a)
    log_ratio = _log_choose(torch.where(inside, a, 0.0), torch.where(inside, b, 0.0))
    return torch.where(inside, (log_ratio - _log_choose(n, k)).exp(), 0.0)


def _log_choose(n: Tensor, k: Tensor) -> Tensor:
    return torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)


@dataclass(frozen=True)
class Ranked:
    """Rewards with their ranks, as max@k sees them; all float64.

    Attributes:
        rewards: Rewards of rollouts.
        index: Their groups, counted from 0.
        rank: Place in the group by reward, ascending from 1.
        n: Rollouts in the group.
        k: The smaller of k and n.
    """

    rewards: PerRollout
    index: Index
    rank: PerRollout
    n: PerRollout
    k: PerRollout

    @classmethod
    def of(cls, rewards: PerRollout, index: Index, k: int) -> Ranked:
        """Rank the rollouts of each group."""
        rewards = rewards.double()
        rank = group_rank(rewards, index).double() + 1
        n = group_count(index, rewards)
        return cls(rewards, index, rank, n, n.clamp(max=k))

    def weight(self, less: int) -> PerRollout:
        """C(rank - less, k - less) / C(n, k)."""
        return choose_ratio(self.rank - less, self.k - less, self.n, self.k)

    def before(self, values: PerRollout) -> PerRollout:
        """Sum of the values of the group's lower ranks."""
        order = group_order(self.rewards, self.index)
        total = torch.empty_like(values).scatter(0, order, values[order].cumsum(0)) - values
        return total - total[order][group_start(self.index)]

    def after(self, values: PerRollout) -> PerRollout:
        """Sum of the values of the group's higher ranks."""
        return group_sum(values, self.index) - self.before(values) - values

    @property
    def flat(self) -> Bool[Tensor, " R"]:
        """Whether all rewards of the group are equal."""
        return group_flat(self.rewards, self.index)


def best_of_k(rewards: PerRollout, index: Index, k: int) -> PerRollout:
    """q_i of each rollout, float64; summed over a group it is k max@k."""
    ranked = Ranked.of(rewards, index, k)
    later = ranked.after(ranked.weight(2) * ranked.rewards)
    return ranked.weight(1) * ranked.rewards + later


def max_at_k(rewards: PerRollout, index: Index, k: int) -> PerRollout:
    """Estimate of max@k of each rollout's group, float64."""
    ranked = Ranked.of(rewards, index, k)
    return group_sum(best_of_k(rewards, index, k), index) / ranked.k


def leave_one_out(rewards: PerRollout, index: Index, k: int) -> PerRollout:
    """q_i less k/n times the mean, over k-subsets without i, of their maximum; 0 where n = k."""
    ranked, q = Ranked.of(rewards, index, k), best_of_k(rewards, index, k)
    rest = (max_at_k(rewards, index, k) - q) * ranked.k / (ranked.n - ranked.k).clamp(min=1)
    return torch.where(ranked.flat | (ranked.n == ranked.k), 0.0, q - rest)


def marginal(rewards: PerRollout, index: Index, k: int) -> PerRollout:
    """(1 / C(n, k)) sum_{I containing i} (max_I r - max_{I without i} r): what i adds to its sets.

    For k = 1 nothing is subtracted.
    """
    ranked = Ranked.of(rewards, index, k)
    fewer = choose_ratio(ranked.rank - 1, ranked.k - 2, ranked.n, ranked.k)
    credit = ranked.weight(1) * ranked.rewards - ranked.before(fewer * ranked.rewards)
    return torch.where(ranked.flat & (ranked.k > 1), 0.0, credit)


@dataclass(frozen=True)
class BestOfK:
    """Attributes shared by the estimators.

    Attributes:
        k: Size of the sets of which the best counts, at most the rollouts per prompt.
    """

    k: int = 4

    def __post_init__(self) -> None:
        if self.k < 1:
            raise RecipeError(f"max@k with k={self.k}: k must be at least 1.")


@part("advantages.estimator", min_rollouts=2, claims={"zero-on-equal-rewards"})
@dataclass(frozen=True)
class BestOfKLeaveOneOut(BestOfK):
    """A_i = q_i - (k/n) mean of max_I r over k-subsets I without i: unbiased, less variance.

    Our reading of the leave-one-out baseline of Pass@K Policy Optimization; see arXiv 2510.23393.
    """

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        table = RolloutTable.of(batch)
        return table.spread(
            leave_one_out(table.rewards, table.group, self.k).to(table.rewards.dtype)
        )


@part("advantages.estimator", min_rollouts=2)
@dataclass(frozen=True)
class BestOfKMarginal(BestOfK):
    """A_i = (1 / C(n, k)) sum_{I containing i} (max_I r - max_{I without i} r).

    Only what raises the maximum of a set gets credit, and none is negative: "leave one out minus
    one" of Pass@K Policy Optimization; see arXiv 2510.23393.
    """

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        table = RolloutTable.of(batch)
        return table.spread(marginal(table.rewards, table.group, self.k).to(table.rewards.dtype))


@part("advantages.estimator", min_rollouts=2, claims={"zero-on-equal-rewards"})
@dataclass(frozen=True)
class BestOfKZScore(BestOfK):
    """A_i = (q_i - mean_g q) / (std_g q + eps), std with n - 1. arXiv 2510.23393, section 4.

    Attributes:
        eps: Added to the deviation.
    """

    eps: float = 1e-6

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        table = RolloutTable.of(batch)
        score = group_z_score(best_of_k(table.rewards, table.group, self.k), table.group, self.eps)
        flat = group_flat(table.rewards, table.group)
        return table.spread(torch.where(flat, 0.0, score).to(table.rewards.dtype))
