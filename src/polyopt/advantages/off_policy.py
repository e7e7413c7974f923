"""Credit of group-relative REINFORCE on rollouts of any policy: baselines off the mean, weights.

"Group-Relative REINFORCE Is Secretly an Off-Policy Algorithm", arXiv 2509.24203, and its code in
Trinity-RFT: OPMD, AsymRE and the RED family.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from polyopt.advantages.soft_means import group_soft_mean
from polyopt.batch import Batch
from polyopt.divergences import bounded_exp
from polyopt.groups import group_deviation
from polyopt.parts import part
from polyopt.rollout_table import RolloutTable

Advantages = Float[Tensor, "N T"]


@part("advantages.estimator", min_rollouts=2, claims={"zero-on-equal-rewards"})
@dataclass(frozen=True)
class SoftMeanBaseline:
    """A_i = R_i - temperature * log mean_g exp(R / temperature): a baseline above the group's mean.

    OPMD's second baseline. `temperature=inf` is its first, the mean.

    Attributes:
        temperature: tau.
        lone: Share of its reward that a group of one gets as its advantage (the code: 1).
    """

    temperature: float = 1.0
    lone: float = 0.0

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        table = RolloutTable.of(batch)
        deviation = group_deviation(table.rewards, table.group)
        credit = deviation - group_soft_mean(deviation, table.group, self.temperature)
        return table.spread(torch.where(table.alone, self.lone * table.rewards, credit))


@part("advantages.estimator", min_rollouts=2)
@dataclass(frozen=True)
class ShiftedMeanBaseline:
    """A_i = R_i - (mean_g + shift): a baseline below the mean reinforces more than it suppresses.

    A group of equal rewards gets -shift. AsymRE; the same gradient as a forward KL of coefficient
    -shift to the sampler in the loss (`StepDivergence(ForwardKL())`).

    Attributes:
        shift: Added to the baseline.
        lone: Share of its reward that a group of one gets as its advantage (the code: 1).
    """

    shift: float = -0.1
    lone: float = 0.0

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        table = RolloutTable.of(batch)
        credit = group_deviation(table.rewards, table.group) - self.shift
        return table.spread(torch.where(table.alone, self.lone * table.rewards, credit))


@part("advantages.shaping")
@dataclass(frozen=True)
class Damped:
    """A /= 1 + temperature: the step of OPMD's mirror descent.

    Attributes:
        temperature: tau.
    """

    temperature: float = 1.0

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        return advantages / (1 + self.temperature)


@part("advantages.shaping")
@dataclass(frozen=True)
class ExponentialWeight:
    """A *= exp(A / temperature): good rollouts weigh more, bad ones less (RED-Weight).

    Weights aren't normalised; A / temperature is held to +-20.

    Attributes:
        temperature: Advantage by which the weight grows e-fold.
    """

    temperature: float = 1.0

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        return advantages * bounded_exp(advantages / self.temperature)
