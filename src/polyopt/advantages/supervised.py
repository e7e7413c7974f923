"""Credit of supervised losses on sampled rollouts: which of them to imitate, and how strongly."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from polyopt.advantages.trajectories import success
from polyopt.batch import Batch
from polyopt.groups import group_flat, group_mean
from polyopt.parts import part
from polyopt.rollout_table import RolloutTable

Advantages = Float[Tensor, "N T"]


@part("advantages.estimator")
def every_rollout(advantages: Advantages, batch: Batch) -> Advantages:
    """A = 1: plain likelihood of every rollout, whatever its reward; selection gives weights."""
    return batch.mask.to(batch.rewards.dtype)


@part("advantages.estimator")
def positive_reward(advantages: Advantages, batch: Batch) -> Advantages:
    """A_i = max(R_i, 0): likelihood of the good rollouts only.

    The others stay in the denominator of the mean. RAFT, in "A Minimalist Approach to LLM
    Reasoning", arXiv 2504.11343.
    """
    table = RolloutTable.of(batch)
    return table.spread(table.rewards.clamp(min=0))


@part("advantages.estimator", min_rollouts=2, claims={"zero-on-equal-rewards"})
@dataclass(frozen=True)
class MixedGroupReward:
    """A_i = R_i where the prompt's rewards differ, 0 where they are all equal: no baseline at all.

    Meant for rewards of +1 and -1. The paper leaves equal groups out; its code keeps them with
    weight 0 in the denominator of the mean, as here (add `dynamic-sampling` for the paper's).

    Reinforce-Rej, in "A Minimalist Approach to LLM Reasoning", arXiv 2504.11343.

    Attributes:
        lone: Share of its reward that a group of one gets as its advantage (the code: 1).
    """

    lone: float = 0.0

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        table = RolloutTable.of(batch)
        mixed = ~group_flat(table.rewards, table.group)
        share = torch.where(table.alone, self.lone, mixed.to(table.rewards.dtype))
        return table.spread(share * table.rewards)


@part("advantages.estimator", provides={"success_rate"}, min_rollouts=2)
@dataclass(frozen=True)
class SuccessRateWeight:
    """A_i = w(q) if right, -negative * w(q) if wrong, w = (1 - q)^rarity / q^boost.

    q is the share of right rollouts of the prompt, kept within [margin, 1 - margin] and added as
    the column `success_rate` [N]. rarity 1, boost 0 gives w = 1 - q; both 1/2 gives
    sqrt((1 - q) / q), with which `NegativeAware` has GRPO's gradient on-policy; both 0 gives 1.

    NFT, arXiv 2505.18116.

    Attributes:
        rarity: Power of 1 - q.
        boost: Power of 1 / q.
        negative: Weight of wrong rollouts (0 is rejection sampling).
        margin: Distance that q keeps from 0 and 1.
    """

    rarity: float = 1.0
    boost: float = 0.0
    negative: float = 1.0
    margin: float = 0.02

    def provide(self, batch: Batch) -> dict[str, Tensor]:
        """q of each row's prompt."""
        table = RolloutTable.of(batch)
        right = table.column(success(batch)).to(table.rewards.dtype)
        rate = group_mean(right, table.group).clamp(self.margin, 1 - self.margin)
        return {"success_rate": table.rows(rate)}

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        q = self.provide(batch)["success_rate"]
        weight = (1 - q) ** self.rarity / q**self.boost
        credit = torch.where(success(batch), weight, -self.negative * weight)
        return credit[:, None] * batch.mask.to(credit.dtype)
