"""Credit where demonstrations stand among a prompt's rollouts: the policy's own are the measure.

Column `demonstration` [N]: 1 on rows that somebody else wrote, 0 on the policy's own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from polyopt.batch import Batch
from polyopt.groups import group_max, group_min, group_sum
from polyopt.parts import part
from polyopt.rollout_table import RolloutTable

Advantages = Float[Tensor, "N T"]
PerRollout = Float[Tensor, " R"]


@dataclass(frozen=True)
class OwnStatistics:
    """Statistics of each prompt's own rollouts, given to all of its rollouts.

    Attributes:
        table: The batch's rollouts.
        own: Which of them the policy wrote. [R]
        count: Own rollouts of the prompt. [R]
        mean: Their mean reward; 0 without any. [R]
    """

    table: RolloutTable
    own: Bool[Tensor, " R"]
    count: PerRollout
    mean: PerRollout

    @classmethod
    def of(cls, batch: Batch) -> OwnStatistics:
        """From the column `demonstration`."""
        table = RolloutTable.of(batch)
        own = table.column(batch["demonstration"]) == 0
        count = group_sum(own.to(table.rewards.dtype), table.group)
        total = group_sum(table.rewards.masked_fill(~own, 0.0), table.group)
        low = group_min(table.rewards.masked_fill(~own, torch.inf), table.group)
        high = group_max(table.rewards.masked_fill(~own, -torch.inf), table.group)
        mean = torch.where(low == high, low, total / count.clamp(min=1))
        return cls(table, own, count, mean)

    @property
    def deviation(self) -> PerRollout:
        """Reward less the own rollouts' mean; 0 where a prompt has no own rollout."""
        return (self.table.rewards - self.mean).masked_fill(self.count == 0, 0.0)

    def std(self, ddof: int) -> PerRollout:
        """Standard deviation of the own rollouts' rewards."""
        squares = self.deviation.masked_fill(~self.own, 0.0).square()
        freedom = (self.count - ddof).clamp(min=1)
        return (group_sum(squares, self.table.group) / freedom).sqrt()


@part("advantages.estimator", needs={"demonstration"}, min_rollouts=2)
@dataclass(frozen=True)
class OwnMeanBaseline:
    """A_i = r_i - mean of the prompt's own rewards, for own rollouts and demonstrations alike.

    RL-PLUS, arXiv 2508.00222 (its script; the paper's notation divides by the deviation too).

    Attributes:
        lone: Share of their reward that the rollouts of a prompt with a single own one get as their
            advantage (the code: 1).
    """

    lone: float = 0.0

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        own = OwnStatistics.of(batch)
        alone = self.lone * own.table.rewards
        return own.table.spread(torch.where(own.count == 1, alone, own.deviation))


@part("advantages.estimator", needs={"demonstration"}, min_rollouts=2)
@dataclass(frozen=True)
class OwnZScore:
    """A_i = (r_i - mean) / (std + eps) with mean and std (with n) of the prompt's own rewards.

    Held to +-bound: where the own rewards are all equal, a demonstration's would be its difference
    divided by eps. GRAO's printed formula, arXiv 2508.07750; with the demonstration inside the
    statistics (`PopulationZScore`) there is no such case.

    Attributes:
        eps: Added to the deviation.
        bound: Largest advantage.
    """

    eps: float = 1e-6
    bound: float = 10.0

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        own = OwnStatistics.of(batch)
        score = own.deviation / (own.std(ddof=0) + self.eps)
        return own.table.spread(score.clamp(-self.bound, self.bound))
