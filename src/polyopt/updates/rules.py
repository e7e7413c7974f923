"""Plain gradient steps: minibatches and epochs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from polyopt.batch import Batch
from polyopt.parts import part
from polyopt.updates.protocol import GradientSource, Metrics


@part("updates.rule")
@dataclass(frozen=True)
class GradientSteps:
    """`epochs` passes over the rollout batch, each cut into `minibatches` of whole rollouts.

    Each minibatch is one optimizer step. With one of each the step is strictly on-policy.
    """

    minibatches: int = 1
    epochs: int = 1

    @property
    def steps(self) -> int:
        """Optimizer steps per batch of rollouts."""
        return self.minibatches * self.epochs

    def __call__(
        self, learner: GradientSource, batch: Batch, draws: np.random.Generator
    ) -> list[Metrics]:
        """Metrics of each optimizer step."""
        steps = []
        for _ in range(self.epochs):
            for part_of_batch in _minibatches(batch, self.minibatches, draws):
                metrics = learner.gradient(part_of_batch)
                steps.append(metrics | learner.apply())
        return steps


def _minibatches(batch: Batch, count: int, draws: np.random.Generator) -> list[Batch]:
    """The batch cut into `count` parts of nearly equal numbers of whole rollouts."""
    if count == 1:
        return [batch]
    rollouts = torch.unique(batch.rollout)
    order = rollouts[torch.from_numpy(draws.permutation(len(rollouts)))]
    shares = [share for share in order.tensor_split(count) if len(share)]
    return [batch.select(torch.isin(batch.rollout, share)) for share in shares]
