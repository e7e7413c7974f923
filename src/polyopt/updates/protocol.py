"""What an update rule is, and what it works with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from jaxtyping import Float
from torch import Tensor

from polyopt.batch import Batch

Metrics = dict[str, float]


class GradientSource(Protocol):
    """A policy, its objective and its optimizer, as an update rule sees them."""

    def gradient(self, batch: Batch) -> Metrics:
        """Set every parameter's gradient to that of the objective over the whole batch."""

    def apply(self) -> Metrics:
        """One optimizer step with the gradients that are set; they are cleared."""

    def weights(self) -> list[Tensor]:
        """A copy of the trainable weights."""

    def interpolate(self, start: Sequence[Tensor], share: float) -> None:
        """Move the trainable weights to start + share * (weights - start)."""

    def place(self, weights: Sequence[Tensor]) -> None:
        """Set the trainable weights as a step of the optimizer would: they are a new version."""

    def gradients(self) -> list[Tensor]:
        """A copy of every parameter's gradient; 0 where there is none."""

    def log_probs(self, batch: Batch) -> Float[Tensor, "N T"]:
        """Log-probabilities of the batch's tokens under the present weights, no gradient."""


class ReferenceWeights(Protocol):
    """Makes the frozen reference of the policy's first weights and those of a second model."""

    def __call__(
        self, policy: Mapping[str, Tensor], second: Mapping[str, Tensor]
    ) -> dict[str, Tensor]: ...


class UpdateRule(Protocol):
    """How optimizer steps are taken on one batch of rollouts."""

    @property
    def steps(self) -> int:
        """Most optimizer steps that the rule takes per batch; 1 means strictly on-policy."""

    def __call__(
        self, learner: GradientSource, batch: Batch, draws: np.random.Generator
    ) -> list[Metrics]:
        """Take the steps; the metrics of each."""
