"""Update rules that choose the policy around which a step is clipped, or what a pass is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from torch import Tensor

from polyopt.batch import Batch
from polyopt.parts import part
from polyopt.updates.averaging import MovingAverage
from polyopt.updates.protocol import GradientSource, Metrics
from polyopt.updates.rules import GradientSteps


class Wrapped:
    """A learner with something changed: everything else is passed on."""

    def __init__(self, learner: GradientSource) -> None:
        self.learner = learner

    def gradient(self, batch: Batch) -> Metrics:
        """See `GradientSource`."""
        return self.learner.gradient(batch)

    def apply(self) -> Metrics:
        """See `GradientSource`."""
        return self.learner.apply()

    def weights(self) -> list[Tensor]:
        """See `GradientSource`."""
        return self.learner.weights()

    def interpolate(self, start: Sequence[Tensor], share: float) -> None:
        """See `GradientSource`."""
        self.learner.interpolate(start, share)

    def place(self, weights: Sequence[Tensor]) -> None:
        """See `GradientSource`."""
        self.learner.place(weights)

    def gradients(self) -> list[Tensor]:
        """See `GradientSource`."""
        return self.learner.gradients()

    def log_probs(self, batch: Batch) -> Float[Tensor, "N T"]:
        """See `GradientSource`."""
        return self.learner.log_probs(batch)


class _AroundAverage(Wrapped):
    """A learner whose `logp_old` are those of an average of its past weights."""

    def __init__(self, learner: GradientSource, average: MovingAverage) -> None:
        super().__init__(learner)
        self.average = average

    def gradient(self, batch: Batch) -> Metrics:
        """Gradient with the ratio taken to the averaged policy."""
        current = self.learner.weights()
        self.learner.interpolate(self.average.average, 0.0)
        proximal = self.learner.log_probs(batch)
        self.learner.interpolate(current, 0.0)
        return self.learner.gradient(batch.replace(logp_old=proximal))

    def apply(self) -> Metrics:
        """A step, after which its weights join the average."""
        metrics = self.learner.apply()
        self.average.update(self.learner.weights())
        return metrics


@part("updates.rule")
@dataclass
class AveragedProximal:
    """Gradient steps around a moving average of the policy's own weights.

    Before each step `logp_old` is evaluated under the average; after it the new weights join. With
    a surrogate that weighs for the behaviour policy separately (`DecoupledClip`), the size of a
    batch then says little about how far the policy may move. One more forward pass per step.

    PPO-EWMA, arXiv 2110.00641 (decay near 0.889: unverified).

    Attributes:
        minibatches: See `GradientSteps`.
        epochs: See `GradientSteps`.
        decay: See `MovingAverage`.
        average: The proximal policy's weights.
    """

    minibatches: int = 2
    epochs: int = 1
    decay: float = 0.889
    average: MovingAverage = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.average = MovingAverage(self.decay)

    @property
    def steps(self) -> int:
        """Optimizer steps per batch of rollouts."""
        return self.minibatches * self.epochs

    def __call__(
        self, learner: GradientSource, batch: Batch, draws: np.random.Generator
    ) -> list[Metrics]:
        """Metrics of each optimizer step."""
        if not self.average.average:
            self.average.start(learner.weights())
        around = _AroundAverage(learner, self.average)
        return GradientSteps(self.minibatches, self.epochs)(around, batch, draws)

    def state_dict(self) -> dict[str, Any]:
        """The average."""
        return self.average.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.average.load_state_dict(state)


def only(batch: Batch, chosen: Bool[Tensor, "N T"]) -> Batch:
    """The batch with credit and penalties at some tokens alone; denominators stay as they are.

    Penalties are silenced through the column `penalty_weights` [N, T].
    """
    credit = batch["advantages"].masked_fill(~chosen, 0.0)
    return batch.replace(advantages=credit, penalty_weights=chosen.to(credit.dtype))


@part("updates.rule")
@dataclass(frozen=True)
class LowProbabilityFirst:
    """Two full updates on a batch: tokens with p < threshold first, then the others.

    p = exp(logp_old), which isn't refreshed: the second pass sees the ratios that the first made.
    Each pass steps the optimizer even if it has no token. Denominators count all tokens.

    Lopti, "Do Not Let Low-Probability Tokens Over-Dominate in RL for LLMs" (2025), official code.

    Attributes:
        threshold: eta, a probability.
        minibatches: See `GradientSteps`; per pass.
        epochs: See `GradientSteps`; per pass.
    """

    threshold: float = 0.5
    minibatches: int = 1
    epochs: int = 1

    @property
    def steps(self) -> int:
        """Optimizer steps per batch of rollouts."""
        return 2 * self.minibatches * self.epochs

    def passes(self, batch: Batch) -> tuple[Bool[Tensor, "N T"], Bool[Tensor, "N T"]]:
        """Tokens of the first and of the second pass."""
        unlikely = batch["logp_old"].exp() < self.threshold
        return batch.loss_mask & unlikely, batch.loss_mask & ~unlikely

    def __call__(
        self, learner: GradientSource, batch: Batch, draws: np.random.Generator
    ) -> list[Metrics]:
        """Metrics of each optimizer step."""
        steps = GradientSteps(self.minibatches, self.epochs)
        first, second = self.passes(batch)
        made = steps(learner, only(batch, first), draws)
        return made + steps(learner, only(batch, second), draws)


@part("updates.rule")
@dataclass(frozen=True)
class HighProbabilityFirst(LowProbabilityFirst):
    """The same two passes in the other order (eta < 0 in the authors' code)."""

    def passes(self, batch: Batch) -> tuple[Bool[Tensor, "N T"], Bool[Tensor, "N T"]]:
        """Tokens of the first and of the second pass."""
        first, second = super().passes(batch)
        return second, first
