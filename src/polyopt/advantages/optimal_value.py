"""The value of the best policy within reach of a reference, from rewards known before training."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from polyopt.advantages.soft_means import soft_mean
from polyopt.advantages.statistics import spread
from polyopt.batch import Batch
from polyopt.errors import DataError
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
            DataError: Neither the batch nor its prompts know the reference's rewards.
        """
        value = soft_mean(reference_rewards(batch).to(batch.rewards), self.temperature)
        return spread(batch.rewards - value, batch.mask)


def reference_rewards(batch: Batch) -> Float[Tensor, "N K"]:
    """Rewards of the reference policy's completions for each row's prompt; NaN fills short lists.

    Raises:
        DataError: Neither the batch nor its prompts know them.
    """
    if "reference_rewards" in batch:
        return batch["reference_rewards"]
    lists = [prompt.metadata.get("reference_rewards") for prompt in batch.prompts]
    for prompt, rewards in zip(batch.prompts, lists, strict=True):
        if not isinstance(rewards, list | tuple) or not rewards:
            raise DataError(
                f"prompt {prompt.id!r} has no list of numbers under 'reference_rewards' in its "
                f"metadata (it has: {rewards!r}). Sample the reference policy on each prompt "
                "before training and store the rewards there."
            )
    width = max((len(rewards) for rewards in lists if rewards), default=1)
    filled = [[*rewards, *[float("nan")] * (width - len(rewards))] for rewards in lists if rewards]
    return torch.tensor(filled, dtype=batch.rewards.dtype).reshape(len(filled), width)
