"""Natural-gradient steps inside a KL ball, with a line search.

`TrustRegionStep` works on one flat vector of weights and on two functions of it: the surrogate that
is to grow, and the mean KL divergence from the old policy. `TrustRegionUpdate` is the same as an
update rule. A step costs some ten products with the curvature: meant for small policies and
adapters, and as an oracle for cheaper trust regions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from polyopt.batch import Batch
from polyopt.divergences import UnnormalizedForwardKL
from polyopt.parts import part
from polyopt.updates.protocol import GradientSource, Metrics

Vector = Float[Tensor, " P"]


@dataclass(frozen=True)
class NaturalStep:
    """What a step found.

    Attributes:
        weights: The new weights, or the old ones if no try was accepted.
        gradient: Gradient of the surrogate at the old weights.
        direction: Solution x of F x = gradient.
        full_step: The step that the KL ball allows to second order.
        backtracks: Halvings until acceptance; -1 if none was accepted.
    """

    weights: Vector
    gradient: Vector
    direction: Vector
    full_step: Vector
    backtracks: int


def conjugate_gradient(
    product: Callable[[Vector], Vector],
    target: Vector,
    iterations: int = 10,
    tolerance: float = 1e-10,
) -> Vector:
    """x with product(x) = target, for a positive definite map.

    Starts at 0 and ends once the squared residual is below `tolerance`.
    """
    x, residual = torch.zeros_like(target), target.clone()
    along, squared = residual.clone(), residual @ residual
    for _ in range(iterations):
        if float(squared) < tolerance:
            break
        image = product(along)
        length = squared / (along @ image)
        x, residual = x + length * along, residual - length * image
        before, squared = squared, residual @ residual
        along = residual + squared / before * along
    return x


def curvature(
    divergence: Callable[[Vector], Tensor], weights: Vector, damping: float
) -> Callable[[Vector], Vector]:
    """v -> (Hessian of the divergence at the weights + damping) v, by differentiating twice."""
    leaf = weights.detach().clone().requires_grad_()
    (slope,) = torch.autograd.grad(divergence(leaf), leaf, create_graph=True)

    def product(vector: Vector) -> Vector:
        (image,) = torch.autograd.grad(slope @ vector.detach(), leaf, retain_graph=True)
        return image + damping * vector

    return product


@dataclass(frozen=True)
class TrustRegionStep:
    """The largest natural-gradient step inside mean KL <= max_kl that improves the surrogate.

    x solves (F + damping) x = g by conjugate gradient, F the Hessian of the mean KL divergence at
    the old weights; the full step is sqrt(2 max_kl / x^T (F + damping) x) x; it is shortened by
    `shrink` until the divergence is within max_kl and the surrogate has grown, in `tries` tries.

    TRPO, arXiv 1502.05477, appendix C (damped curvature in the step length: common practice).

    Attributes:
        max_kl: delta, in nats per token.
        damping: Added to the curvature.
        iterations: Most conjugate-gradient steps.
        tolerance: Squared residual at which they end.
        shrink: Factor between tries.
        tries: Step lengths tried.
    """

    max_kl: float = 0.01
    damping: float = 0.1
    iterations: int = 10
    tolerance: float = 1e-10
    shrink: float = 0.5
    tries: int = 10

    def __call__(
        self,
        weights: Vector,
        surrogate: Callable[[Vector], Tensor],
        divergence: Callable[[Vector], Tensor],
    ) -> NaturalStep:
        """The step from the old weights."""
        leaf = weights.detach().clone().requires_grad_()
        (gradient,) = torch.autograd.grad(surrogate(leaf), leaf)
        product = curvature(divergence, weights, self.damping)
        direction = conjugate_gradient(product, gradient, self.iterations, self.tolerance)
        full = self.scaled(direction, product(direction))
        with torch.no_grad():
            start = float(surrogate(weights))

            def accepted(step: Vector) -> bool:
                new = weights + step
                inside = float(divergence(new)) <= self.max_kl
                return inside and float(surrogate(new)) > start

            backtracks = self.backtrack(full, accepted)
        step = torch.zeros_like(full) if backtracks < 0 else self.shrink**backtracks * full
        return NaturalStep(weights + step, gradient, direction, full, backtracks)

    def scaled(self, direction: Vector, image: Vector) -> Vector:
        """The direction at the length where its quadratic form is 2 max_kl; 0 stays 0."""
        form = float(direction @ image)
        return direction * (2 * self.max_kl / form) ** 0.5 if form > 0 else direction * 0

    def backtrack(self, full: Vector, accepted: Callable[[Vector], bool]) -> int:
        """The first shortening that is accepted; -1 if none is."""
        for i in range(self.tries):
            if accepted(self.shrink**i * full):
                return i
        return -1


@part("updates.rule", needs={"logp_old", "advantages"})
@dataclass(frozen=True)
class TrustRegionUpdate:
    """One TRPO step per batch on a language model, instead of the optimizer's.

    Curvature times a vector is the change along it, over a distance of `probe`, of the gradient of
    the mean divergence from the old policy (rho - log rho - 1 at sampled tokens). So a step takes
    about `step.iterations` + `step.tries` gradients. The objective has to hold `StepDivergence` of
    that divergence in its trust region, with coefficient 0, and no other penalty that bends.

    TRPO, arXiv 1502.05477; differences in place of second derivatives are ours.

    Attributes:
        step: The numbers of the step.
        probe: Distance in weight space over which gradients are compared.
    """

    step: TrustRegionStep = field(default_factory=TrustRegionStep)
    probe: float = 1e-2

    @property
    def steps(self) -> int:
        """Steps per batch of rollouts."""
        return 1

    def __call__(
        self, learner: GradientSource, batch: Batch, draws: np.random.Generator
    ) -> list[Metrics]:
        """Metrics of the step; `trpo/backtracks` is -1 where no length was accepted."""
        metrics = learner.gradient(batch)
        start, target = learner.weights(), -_flat(learner.gradients())

        def product(vector: Vector) -> Vector:
            return self.curvature(learner, batch, start, vector) + self.step.damping * vector

        def accepted(step: Vector) -> bool:
            learner.interpolate(_moved(start, step), 0.0)
            inside = self.divergence(learner, batch) <= self.step.max_kl
            return inside and learner.gradient(batch)["loss"] < metrics["loss"]

        direction = conjugate_gradient(product, target, self.step.iterations, self.step.tolerance)
        full = self.step.scaled(direction, product(direction))
        backtracks = self.step.backtrack(full, accepted) if bool(full.any()) else -1
        share = 0.0 if backtracks < 0 else self.step.shrink**backtracks
        learner.place(_moved(start, share * full))
        found = {"trpo/backtracks": float(backtracks), "trpo/step": float(full.norm())}
        return [metrics | found | {"grad_norm": float(target.norm())}]

    def curvature(
        self, learner: GradientSource, batch: Batch, start: list[Tensor], vector: Vector
    ) -> Vector:
        """Hessian of the mean divergence at the start, times a vector."""
        size = float(vector.norm())
        if size == 0:
            return torch.zeros_like(vector)
        ones = torch.ones(len(batch), dtype=batch.rewards.dtype, device=batch.mask.device)
        still = batch.replace(
            advantages=torch.zeros_like(batch["advantages"]), step_coefficient=ones
        )
        learner.interpolate(_moved(start, self.probe / size * vector), 0.0)
        learner.gradient(still)
        learner.interpolate(start, 0.0)
        return _flat(learner.gradients()) * (size / self.probe)

    def divergence(self, learner: GradientSource, batch: Batch) -> float:
        """Mean divergence of the trained tokens from the old policy, in nats."""
        d = (learner.log_probs(batch) - batch["logp_old"])[batch.loss_mask]
        return float(UnnormalizedForwardKL()(d).mean()) if len(d) else 0.0


def _flat(weights: list[Tensor]) -> Vector:
    return torch.cat([weight.flatten() for weight in weights])


def _moved(start: list[Tensor], step: Vector) -> list[Tensor]:
    """Weights that are a flat step away from others."""
    pieces = torch.split(step, [weight.numel() for weight in start])
    return [w + piece.view_as(w) for w, piece in zip(start, pieces, strict=True)]
