"""A guaranteed trust region: a penalty whose weight adapts, then steps until nothing violates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from polyopt.batch import Batch
from polyopt.divergences import UnnormalizedForwardKL
from polyopt.parts import part
from polyopt.updates.protocol import GradientSource, Metrics
from polyopt.updates.proximal import Wrapped
from polyopt.updates.rules import GradientSteps


@dataclass
class PenaltyWeight:
    """beta >= 0, one Adam step at a time on beta (limit - scale * KL): it grows where KL is large.

    Attributes:
        value: beta.
        limit: Largest KL divergence, in nats.
        scale: C; KL is held at limit / C, so that it seldom reaches the limit.
        lr: Learning rate of beta; 0 fixes it.
    """

    value: float = 1.0
    limit: float = 0.2
    scale: float = 2.0
    lr: float = 0.01
    moments: tuple[float, float, int] = (0.0, 0.0, 0)

    def slope(self, kl: float) -> float:
        """Derivative of the loss of beta by beta."""
        return self.limit - self.scale * kl

    def adapt(self, kl: float) -> None:
        """One Adam step (0.9, 0.999), then held above 0."""
        mean, square, count = self.moments
        slope, count = self.slope(kl), count + 1
        mean, square = 0.9 * mean + 0.1 * slope, 0.999 * square + 0.001 * slope * slope
        self.moments = mean, square, count
        scale = (square / (1 - 0.999**count)) ** 0.5 + 1e-8
        self.value = max(self.value - self.lr * mean / (1 - 0.9**count) / scale, 0.0)


class Penalised(Wrapped):
    """A learner that trains with the adaptive penalty, and adapts it after each step."""

    def __init__(self, learner: GradientSource, rule: FixUp) -> None:
        super().__init__(learner)
        self.rule = rule
        self.batch: Batch | None = None

    def gradient(self, batch: Batch) -> Metrics:
        """Gradient of the surrogate plus beta times the divergence."""
        self.batch = batch
        return self.learner.gradient(self.rule.penalised(batch))

    def apply(self) -> Metrics:
        """A step; then beta follows the divergence that it made."""
        metrics = self.learner.apply()
        assert self.batch is not None
        kl = self.rule.statistic(self.rule.divergence(self.learner, self.batch))
        self.rule.weight.adapt(kl)
        return metrics | {"fix_up/beta": self.rule.weight.value, "fix_up/kl": kl}


@part("updates.rule")
@dataclass
class FixUp:
    """Unclipped steps with an adaptive KL penalty, then steps on the penalty alone until it holds.

    Loss: -rho A + beta KL(old || pi), with beta (`PenaltyWeight`) adapted after each step. When the
    steps are done, while the largest token divergence exceeds `limit`: a step on beta KL with all
    advantages 0, and beta adapted again; at most `most_fix_ups` of them.

    The objective has to hold a `StepDivergence` in its trust region: beta reaches it through the
    column `step_coefficient`. Divergences are estimates from sampled tokens (rho - log rho - 1);
    where the whole vocabulary is at hand, override `divergence` with the exact one.

    FixPO, "Guaranteed Trust Region Optimization via Two-Phase KL Penalization", arXiv 2312.05405.

    Attributes:
        minibatches: See `GradientSteps`.
        epochs: See `GradientSteps`.
        limit: Largest divergence of a token, in nats.
        scale: C of `PenaltyWeight`.
        beta: First weight of the penalty.
        beta_lr: Learning rate of beta.
        most_fix_ups: Most steps of the second phase.
        weight: beta now.
    """

    minibatches: int = 2
    epochs: int = 1
    limit: float = 0.2
    scale: float = 2.0
    beta: float = 1.0
    beta_lr: float = 0.01
    most_fix_ups: int = 8
    weight: PenaltyWeight = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.weight = PenaltyWeight(self.beta, self.limit, self.scale, self.beta_lr)

    @property
    def steps(self) -> int:
        """Most optimizer steps per batch of rollouts."""
        return self.minibatches * self.epochs + self.most_fix_ups

    def __call__(
        self, learner: GradientSource, batch: Batch, draws: np.random.Generator
    ) -> list[Metrics]:
        """Metrics of each optimizer step."""
        wrapped = Penalised(learner, self)
        steps = GradientSteps(self.minibatches, self.epochs)(wrapped, batch, draws)
        return steps + self.fix_up(wrapped, batch)

    def fix_up(self, learner: GradientSource, batch: Batch) -> list[Metrics]:
        """Steps on the penalty alone until nothing violates the limit; metrics of each."""
        still = batch.replace(advantages=torch.zeros_like(batch["advantages"]))
        steps: list[Metrics] = []
        while len(steps) < self.most_fix_ups and self.violated(learner, batch):
            metrics = learner.gradient(still)
            steps.append(metrics | learner.apply())
        return steps

    def violated(self, learner: GradientSource, batch: Batch) -> bool:
        """Whether the policy is outside the trust region."""
        return self.statistic(self.divergence(learner, batch)) > self.limit

    def penalised(self, batch: Batch) -> Batch:
        """The batch with beta in its column `step_coefficient`."""
        beta = torch.full((len(batch),), self.weight.value, dtype=batch.rewards.dtype)
        return batch.replace(step_coefficient=beta.to(batch.mask.device))

    def divergence(self, learner: GradientSource, batch: Batch) -> Float[Tensor, " M"]:
        """Divergence of each trained token from the old policy, in nats."""
        d = (learner.log_probs(batch) - batch["logp_old"])[batch.loss_mask]
        return UnnormalizedForwardKL()(d)

    def statistic(self, divergence: Float[Tensor, " M"]) -> float:
        """What is held below the limit: the largest."""
        return float(divergence.max()) if len(divergence) else 0.0

    def state_dict(self) -> dict[str, Any]:
        """beta and its moments."""
        return {"beta": self.weight.value, "moments": self.weight.moments}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.weight.value, self.weight.moments = state["beta"], state["moments"]


@part("updates.rule")
@dataclass
class MeanFixUp(FixUp):
    """The same with the mean divergence held below the limit."""

    def statistic(self, divergence: Float[Tensor, " M"]) -> float:
        """What is held below the limit: the mean."""
        return float(divergence.mean()) if len(divergence) else 0.0
