"""Estimators that compare a rollout's reward with a baseline."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from polyopt.advantages.statistics import (
    group_count,
    group_deviation,
    group_std,
    spread,
    suffix_sum,
    whiten,
)
from polyopt.batch import Batch
from polyopt.parts import part
from polyopt.rewards.dense import token_rewards
from polyopt.rollout_table import RolloutTable

Advantages = Float[Tensor, "N T"]


@part("advantages.estimator")
def raw_reward(advantages: Advantages, batch: Batch) -> Advantages:
    """A_t = R: the reward itself, no baseline (REINFORCE; Williams 1992)."""
    return spread(batch.rewards, batch.mask)


@part("advantages.estimator", min_rollouts=2, claims={"zero-on-equal-rewards"})
@dataclass(frozen=True)
class GroupZScore:
    """A_i = (r_i - mean_g) / (std_g + eps), std with n - 1, on every sampled token.

    A group of equal rewards gives 0. In a group of one no baseline exists: it gives 0 as well,
    where verl's port passes the raw reward on; `lone=1` does that.

    DeepSeekMath, arXiv 2402.03300, section 4.1.2.

    Attributes:
        eps: Added to the deviation.
        lone: Share of its reward that a group of one gets as its advantage.
    """

    eps: float = 1e-6
    lone: float = 0.0

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        rollouts = RolloutTable.of(batch)
        rewards, group = rollouts.rewards, rollouts.group
        score = group_deviation(rewards, group) / (group_std(rewards, group) + self.eps)
        lone = self.lone * rewards / (1 + self.eps)
        return rollouts.spread(torch.where(rollouts.alone, lone, score))


@part("advantages.estimator", min_rollouts=2, claims={"zero-on-equal-rewards"})
def group_mean_baseline(advantages: Advantages, batch: Batch) -> Advantages:
    """A_i = r_i - mean_g: no division by the deviation, so no bias for easy or hard prompts.

    Dr. GRPO, arXiv 2503.20783, section 3.
    """
    rollouts = RolloutTable.of(batch)
    return rollouts.spread(group_deviation(rollouts.rewards, rollouts.group))


@part("advantages.estimator", min_rollouts=2, claims={"zero-on-equal-rewards"})
@dataclass(frozen=True)
class LeaveOneOut:
    """A_i = r_i - mean of the others' rewards = k/(k-1) (r_i - mean_g): unbiased.

    A group of one has no others and gives 0, where verl's port passes the raw reward on; `lone=1`
    does that. RLOO, arXiv 2402.14740, section 3 (Kool et al. 2019).

    Attributes:
        lone: Share of its reward that a group of one gets as its advantage.
    """

    lone: float = 0.0

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        rollouts = RolloutTable.of(batch)
        count = group_count(rollouts.group, rollouts.rewards)
        scale = count / (count - 1).clamp(min=1)
        credit = scale * group_deviation(rollouts.rewards, rollouts.group)
        return rollouts.spread(torch.where(rollouts.alone, self.lone * rollouts.rewards, credit))


@part("advantages.estimator", needs={"greedy_reward"})
def greedy_baseline(advantages: Advantages, batch: Batch) -> Advantages:
    """A_t = return to go less the reward of the prompt's greedy completion.

    Where the greedy completion couldn't be scored the advantage is 0.
    ReMax, arXiv 2310.10505, algorithm 1.
    """
    baseline = batch["greedy_reward"]
    returns = suffix_sum(token_rewards(batch), batch.mask)
    credit = returns - spread(baseline, batch.mask)
    return torch.where(baseline.isnan()[:, None], torch.zeros_like(credit), credit)


@part("advantages.estimator")
@dataclass(frozen=True)
class WhitenedReturn:
    """A = whiten(G) over all sampled tokens of the batch, G_t = r_t + gamma G_{t+1}.

    REINFORCE++, arXiv 2501.03262, section 3 (needs no group; KL goes into the reward).
    """

    gamma: float = 1.0

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        return whiten(suffix_sum(token_rewards(batch), batch.mask, self.gamma), batch.mask)


@part("advantages.estimator", min_rollouts=2)
def whitened_group_mean(advantages: Advantages, batch: Batch) -> Advantages:
    """A = whiten(r - mean_g) over all sampled tokens of the batch.

    REINFORCE++-baseline, arXiv 2501.03262, section 3.
    """
    return whiten(group_mean_baseline(advantages, batch), batch.mask)
