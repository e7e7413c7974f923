"""Estimators whose baseline is a soft mean of rewards: the value of the best policy within reach."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from polyopt.advantages.soft_means import group_soft_mean, soft_mean
from polyopt.advantages.statistics import group_count, group_deviation, spread
from polyopt.batch import Batch
from polyopt.parts import part

Advantages = Float[Tensor, "N T"]


@part("advantages.estimator", needs={"metadata:reference_rewards"})
@dataclass(frozen=True)
class OptimalValueBaseline:
    """A_i = R_i - V*, V* = temperature * log mean_k exp(r_k / temperature) over r_k of pi_ref.

    The r_k are rewards of K completions that the reference policy gave to the prompt before
    training began: a list under `reference_rewards` in the prompt's metadata, or a column of that
    name [N, K] (NaN for unknown ones). Needs no group. `temperature=inf` makes V* their mean.

    A*-PO, arXiv 2505.20686.

    Attributes:
        temperature: beta_1.
    """

    temperature: float = 0.5

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T].

        Raises:
            ValueError: Neither the batch nor its prompts know the reference's rewards.
        """
        value = soft_mean(reference_rewards(batch).to(batch.rewards), self.temperature)
        return spread(batch.rewards - value, batch.mask)


def reference_rewards(batch: Batch) -> Float[Tensor, "N K"]:
    """Rewards of the reference policy's completions for each row's prompt; NaN fills short lists.

    Raises:
        ValueError: Neither the batch nor its prompts know them.
    """
    if "reference_rewards" in batch:
        return batch["reference_rewards"]
    lists = [prompt.metadata.get("reference_rewards") for prompt in batch.prompts]
    for prompt, rewards in zip(batch.prompts, lists, strict=True):
        if not isinstance(rewards, list | tuple) or not rewards:
            raise ValueError(
                f"prompt {prompt.id!r} has no list of numbers under 'reference_rewards' in its "
                f"metadata (it has: {rewards!r}). Sample the reference policy on each prompt "
                "before training and store the rewards there."
            )
    width = max((len(rewards) for rewards in lists if rewards), default=1)
    filled = [[*rewards, *[float("nan")] * (width - len(rewards))] for rewards in lists if rewards]
    return torch.tensor(filled, dtype=batch.rewards.dtype).reshape(len(filled), width)


@part("advantages.estimator", min_rollouts=2, claims={"zero-on-equal-rewards"})
@dataclass(frozen=True)
class SoftMeanBaseline:
    """A_i = R_i - temperature * log mean_g exp(R / temperature): a baseline above the group's mean.

    OPMD's second baseline; its loss is damped by 1 / (1 + temperature) (`damped`). From the
    Trinity-RFT code of "Group-Relative REINFORCE Is Secretly an Off-Policy Algorithm", arXiv
    2509.24203.

    Attributes:
        temperature: tau; inf is the mean.
        lone: Share of its reward that a group of one gets as its advantage (the code: 1).
    """

    temperature: float = 1.0
    lone: float = 0.0

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        index, deviation = batch.group_index, group_deviation(batch.rewards, batch.group_index)
        credit = deviation - group_soft_mean(deviation, index, self.temperature)
        alone = group_count(index, credit) == 1
        return spread(torch.where(alone, self.lone * batch.rewards, credit), batch.mask)


@part("advantages.estimator", min_rollouts=2)
@dataclass(frozen=True)
class ShiftedMeanBaseline:
    """A_i = R_i - (mean_g + shift): a baseline below the mean reinforces more than it suppresses.

    A group of equal rewards gets -shift. AsymRE; the same as a forward KL of coefficient -shift to
    the sampler in the loss (`ImitationPenalty`). "Group-Relative REINFORCE Is Secretly an
    Off-Policy Algorithm", arXiv 2509.24203.

    Attributes:
        shift: Added to the baseline.
        lone: Share of its reward that a group of one gets as its advantage (the code: 1).
    """

    shift: float = -0.1
    lone: float = 0.0

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        index = batch.group_index
        credit = group_deviation(batch.rewards, index) - self.shift
        alone = group_count(index, credit) == 1
        return spread(torch.where(alone, self.lone * batch.rewards, credit), batch.mask)
