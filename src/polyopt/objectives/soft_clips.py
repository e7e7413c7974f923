"""Surrogates that hold the ratio by other means than a flat clip."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from polyopt.batch import Batch
from polyopt.objectives.protocol import Evaluation, TokenLoss, Tokens
from polyopt.objectives.surrogates import bounded_ratio, drift
from polyopt.parts import part


def scored(value: Tokens, log_ratio: Tokens) -> Tokens:
    """`value` by value, with derivative `value` by the log-ratio: that of a ratio held there."""
    return value.detach() * (1 + log_ratio - log_ratio.detach())


@part("objective.surrogate", needs={"advantages", "logp_old"}, claims={"reinforce"})
@dataclass(frozen=True)
class GradientPreservingClip:
    """The value of PPO's clip, where a clipped token keeps the gradient -A clip(rho).

    L = max(-A rho, -A held), held = clip(rho, 1 - clip_low, 1 + clip_high) by value with its own
    value as derivative. With `dual_clip` c, L <= -A c where A < 0, and beyond c the gradient does
    end (the released code; the paper's formula has no such cap: None).

    GPPO, arXiv 2508.07629.

    Attributes:
        clip_low: The ratio's value is held above 1 - clip_low.
        clip_high: The ratio's value is held below 1 + clip_high.
        dual_clip: c > 1, or None for none.
    """

    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float | None = 10.0

    def __call__(self, log_ratio: Tokens, evaluation: Evaluation, batch: Batch) -> TokenLoss:
        """Token losses [N, T]; logs the share of tokens held as `held` (they aren't silent)."""
        advantages = batch["advantages"]
        ratio = bounded_ratio(log_ratio)
        held = scored(ratio.clamp(1 - self.clip_low, 1 + self.clip_high), log_ratio)
        free, clipped = -advantages * ratio, -advantages * held
        loss = torch.where(clipped > free, clipped, free)
        metrics = {"held": (clipped > free).to(loss.dtype)} | drift(log_ratio)
        if self.dual_clip is not None:
            capped = (advantages < 0) & (loss > -advantages * self.dual_clip)
            loss = torch.where(capped, -advantages * self.dual_clip, loss)
            metrics["clip/dual"] = capped.to(loss.dtype)
        return TokenLoss(loss, metrics)


@part("objective.surrogate", needs={"advantages", "logp_old"}, claims={"reinforce"})
@dataclass(frozen=True)
class QuadraticSurrogate:
    """L = -(A rho - |A| (rho - 1)^2 / (2 eps)): a parabola that turns at rho = 1 + sign(A) eps.

    Every token is pulled back once it is past its turning point. (The log-ratio is held to +-20,
    which the authors' code doesn't do.) SPO, arXiv 2401.16025.

    Attributes:
        eps: Distance of the turning point from 1.
    """

    eps: float = 0.2

    def __call__(self, log_ratio: Tokens, evaluation: Evaluation, batch: Batch) -> TokenLoss:
        """Token losses [N, T]; logs the share of tokens past their turning point."""
        advantages, ratio = batch["advantages"], bounded_ratio(log_ratio)
        penalty = advantages.abs() * (ratio - 1).square() / (2 * self.eps)
        past = advantages.sign() * (ratio - 1) > self.eps
        metrics = {"past": past.to(ratio.dtype)} | drift(log_ratio)
        return TokenLoss(penalty - advantages * ratio, metrics)


@part("objective.surrogate", needs={"advantages", "logp_old"}, claims={"reinforce"})
@dataclass(frozen=True)
class LogClippedGradient:
    """L = -A (logp_old + e), e the log-ratio d clipped on the side where it has gone far enough.

    e = min(d, log(1 + clip_high)) where A > 0, else max(d, log(1 - clip_low)). No ratio multiplies
    the gradient: it is -A inside the bounds, 0 beyond. The constant -A logp_old makes the value
    that of the clipped log-probability, as in siiRL's code.

    CPGD, arXiv 2505.12504.

    Attributes:
        clip_low: The ratio is held above 1 - clip_low, below 1.
        clip_high: The ratio is held below 1 + clip_high.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2

    def __call__(self, log_ratio: Tokens, evaluation: Evaluation, batch: Batch) -> TokenLoss:
        """Token losses [N, T]; logs the share of tokens clipped on each side."""
        advantages = batch["advantages"]
        low, high = math.log(1 - self.clip_low), math.log(1 + self.clip_high)
        up = advantages > 0
        held = torch.where(up, log_ratio.clamp(max=high), log_ratio.clamp(min=low))
        metrics = {
            "clip/high": (up & (log_ratio > high)).to(held.dtype),
            "clip/low": ((advantages < 0) & (log_ratio < low)).to(held.dtype),
        }
        loss = -advantages * (batch["logp_old"] + held)
        return TokenLoss(loss, metrics | drift(log_ratio))


@part("objective.surrogate", needs={"advantages", "logp_old"}, claims={"reinforce"})
@dataclass(frozen=True)
class DiscoveredDrift:
    """L = -(rho A - f), a drift f that was found by meta-learning and written down by hand.

    f = relu((rho - 1) A - alpha tanh((rho - 1) A / alpha)) where A >= 0 and
    f = relu(d A - beta tanh(d A / beta)) where A < 0, d = log rho.

    Discovered Policy Optimisation, arXiv 2210.05639 (NeurIPS 2022).

    Attributes:
        alpha: Scale beyond which a rising ratio is held back.
        beta: Scale beyond which a falling log-ratio is held back.
    """

    alpha: float = 2.0
    beta: float = 0.6

    def drift(self, log_ratio: Tokens, advantages: Tokens) -> Tokens:
        """f [N, T]: never negative, 0 with zero gradient at rho = 1."""
        rising = (bounded_ratio(log_ratio) - 1) * advantages
        falling = log_ratio * advantages
        return torch.where(
            advantages >= 0,
            (rising - self.alpha * (rising / self.alpha).tanh()).relu(),
            (falling - self.beta * (falling / self.beta).tanh()).relu(),
        )

    def __call__(self, log_ratio: Tokens, evaluation: Evaluation, batch: Batch) -> TokenLoss:
        """Token losses [N, T]; logs the drift."""
        advantages = batch["advantages"]
        value = self.drift(log_ratio, advantages)
        loss = value - bounded_ratio(log_ratio) * advantages
        return TokenLoss(loss, {"drift": value} | drift(log_ratio))


@dataclass(frozen=True, eq=False)
class LearnedDrift:
    """L = -(rho A - f), f = relu(net(x) - offset), the drift of a small meta-trained network.

    x = (d, d^2, 1 - rho, (1 - rho)^2) and A x, d = log rho; net(x) = tanh(x W1) W2 without biases.
    The authors published no trained weights, so this isn't in the catalog: give your own.

    LPO, arXiv 2210.05639 (NeurIPS 2022).

    Attributes:
        first: W1 [8, H].
        second: W2 [H, 1].
        offset: Keeps f at 0 near rho = 1.
    """

    first: Float[Tensor, "8 H"]
    second: Float[Tensor, "H 1"]
    offset: float = 1e-4

    def network(self, log_ratio: Tokens, advantages: Tokens) -> Tokens:
        """The network's output [N, T]."""
        away = 1 - bounded_ratio(log_ratio)
        x = torch.stack([log_ratio, log_ratio.square(), away, away.square()], dim=-1)
        both = torch.cat([x, advantages[..., None] * x], dim=-1)
        return ((both @ self.first).tanh() @ self.second)[..., 0]

    def drift(self, log_ratio: Tokens, advantages: Tokens) -> Tokens:
        """f [N, T]."""
        return (self.network(log_ratio, advantages) - self.offset).relu()

    def __call__(self, log_ratio: Tokens, evaluation: Evaluation, batch: Batch) -> TokenLoss:
        """Token losses [N, T]; logs the drift."""
        advantages = batch["advantages"]
        value = self.drift(log_ratio, advantages)
        loss = value - bounded_ratio(log_ratio) * advantages
        return TokenLoss(loss, {"drift": value} | drift(log_ratio))


@dataclass(frozen=True, eq=False)
class LearnedDriftOverClip(LearnedDrift):
    """The learned drift on top of PPO's, relu((rho - clip(rho, 1 - clip, 1 + clip)) A).

    f = relu(PPO's drift + net - offset).

    Attributes:
        clip: Half-width of PPO's clip range.
    """

    clip: float = 0.2

    def drift(self, log_ratio: Tokens, advantages: Tokens) -> Tokens:
        """f [N, T]."""
        ratio = bounded_ratio(log_ratio)
        beyond = ((ratio - ratio.clamp(1 - self.clip, 1 + self.clip)) * advantages).relu()
        return (beyond + self.network(log_ratio, advantages) - self.offset).relu()
