"""Averages of weights: over time, and of two models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from polyopt.parts import part


@dataclass
class MovingAverage:
    """Exponential moving average of weights, corrected for its start.

    total <- decay total + 1; average <- average decay total_before / total + weights / total, from
    total 1 and average = first weights. The newest weights thus count 1/total.

    PPO-EWMA, arXiv 2110.00641, as in the authors' code.

    Attributes:
        decay: Share of the old average's weight that remains at each update.
        total: Sum of the weights of all that was averaged.
        average: The averaged weights; empty before the first update.
    """

    decay: float = 0.889
    total: float = field(default=1.0, init=False, repr=False)
    average: list[Tensor] = field(default_factory=list, init=False, repr=False)

    def start(self, weights: Sequence[Tensor]) -> None:
        """Begin at some weights."""
        self.total, self.average = 1.0, [weight.clone() for weight in weights]

    def update(self, weights: Sequence[Tensor]) -> None:
        """Take newer weights in."""
        kept = self.decay * self.total
        self.total = kept + 1
        with torch.no_grad():
            for mean, weight in zip(self.average, weights, strict=True):
                mean.mul_(kept / self.total).add_(weight / self.total)

    def state_dict(self) -> dict[str, Any]:
        """The average and its total weight."""
        return {"total": self.total, "average": self.average}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.total, self.average = state["total"], list(state["average"])


@part("updates.reference")
@dataclass(frozen=True)
class SoupReference:
    """The reference is share * policy + (1 - share) * second model, weight by weight, frozen.

    The second model is fine-tuned from the same pretrained model, independently; it is given with
    the run (`--second MODEL`). SALSA, arXiv 2411.01798.

    Attributes:
        share: Share of the policy that training starts from.
    """

    share: float = 0.5

    def __call__(
        self, policy: Mapping[str, Tensor], second: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Weights of the reference."""
        return soup(policy, second, self.share)


def soup(
    first: Mapping[str, Tensor], second: Mapping[str, Tensor], share: float = 0.5
) -> dict[str, Tensor]:
    """share * first + (1 - share) * second, weight by weight; whole numbers stay the first's.

    The frozen reference of SALSA (arXiv 2411.01798): two fine-tuned models of one pretrained model.
    Average merged weights, never the two factors of a LoRA separately.

    Raises:
        ValueError: The two models differ in the names or shapes of their weights.
    """
    odd = set(first) ^ set(second)
    odd |= {name for name in set(first) & set(second) if first[name].shape != second[name].shape}
    if odd:
        raise ValueError(f"two models to average differ in their weights: {sorted(odd)[:3]}")
    return {
        name: share * weight + (1 - share) * second[name]
        if weight.is_floating_point()
        else weight.clone()
        for name, weight in first.items()
    }
