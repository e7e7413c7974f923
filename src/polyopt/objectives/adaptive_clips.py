"""Clip ranges and masks that are chosen for each batch, from the ratios of all its tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from polyopt.batch import Batch
from polyopt.objectives.protocol import Evaluation, TokenLoss, Tokens
from polyopt.objectives.surrogates import LOG_RATIO_BOUND, bounded_ratio, clipped_loss
from polyopt.parts import part

Mask = Bool[Tensor, "N T"]

SLACK = 1e-12
"""Rounding slack of M2PO's released search."""


def harmful(log_ratio: Tokens, batch: Batch) -> Mask:
    """Trained tokens that have already moved the way their advantage points: A log rho > 0."""
    return batch.loss_mask & (batch["advantages"] * log_ratio > 0)


def second_moment(log_ratio: Tokens, chosen: Mask) -> Float[Tensor, ""]:
    """Mean squared log-ratio of some tokens; 0 of none."""
    squares = log_ratio.square().masked_fill(~chosen, 0.0)
    return squares.sum() / chosen.sum().clamp(min=1)


@part("objective.trust_region", needs={"advantages", "logp_old"})
@dataclass(frozen=True)
class SecondMomentMask:
    """Masks the largest log-ratios until those left of the harmful tokens have E[d^2] <= budget.

    Harmful tokens (A d > 0) are sorted by d^2; the longest prefix whose mean stays within the
    budget is kept, the others lose their loss and stay in the denominator.

    M2PO, arXiv 2510.01161, algorithm 1 (the released code clips instead: `SecondMomentClip`).

    Attributes:
        budget: Largest second moment of the log-ratio, in squared nats.
    """

    budget: float = 0.04
    coupled = True

    def kept(self, log_ratio: Tokens, batch: Batch) -> Mask:
        """Trained tokens that stay, [N, T]."""
        chosen = harmful(log_ratio, batch)
        squares, order = log_ratio[chosen].square().sort(stable=True)
        count = torch.arange(1, len(squares) + 1, device=squares.device)
        within = squares.cumsum(0) / count <= self.budget
        fate = torch.ones_like(within).scatter(0, order, within)
        return batch.loss_mask.masked_scatter(chosen, fate)

    def __call__(
        self, token_loss: TokenLoss, log_ratio: Tokens, evaluation: Evaluation, batch: Batch
    ) -> TokenLoss:
        """Token losses [N, T], 0 at masked tokens; logs their share."""
        out = ~self.kept(log_ratio.detach(), batch)
        metrics = {"mask/second_moment": out.to(log_ratio.dtype)}
        return TokenLoss(token_loss.loss.masked_fill(out, 0.0), {**token_loss.metrics, **metrics})


@part("objective.surrogate", needs={"advantages", "logp_old"}, claims={"reinforce"})
@dataclass(frozen=True)
class SecondMomentClip:
    """PPO's clip with one bound for the batch: |log rho| <= tau, tau chosen so that the harmful
    tokens capped there have E[d^2] <= budget; no bound where they have it anyway.

    M2PO, arXiv 2510.01161, as in the released code (the paper's algorithm 1 masks instead:
    `SecondMomentMask`). With tau on a token's own |d|, that token counts as clipped.

    Attributes:
        budget: Largest second moment of the log-ratio, in squared nats.
    """

    budget: float = 0.04
    coupled = True

    def bound(self, log_ratio: Tokens, batch: Batch) -> float:
        """tau in nats; infinite where nothing needs to be clipped."""
        chosen = harmful(log_ratio, batch)
        if float(second_moment(log_ratio, chosen)) <= self.budget + SLACK:
            return math.inf
        squares = log_ratio[chosen].square().sort().values
        after = torch.arange(len(squares) - 1, -1, -1, device=squares.device)
        capped = (squares - SLACK) * after + squares.cumsum(0)
        first = int((capped >= self.budget * len(squares) - SLACK).nonzero()[0])
        return 0.0 if first == 0 else math.sqrt(max(float(squares[first - 1]) - SLACK, 0.0))

    def __call__(self, log_ratio: Tokens, evaluation: Evaluation, batch: Batch) -> TokenLoss:
        """Token losses [N, T]; logs tau (20, which nothing reaches, where there is none)."""
        tau = min(self.bound(log_ratio.detach(), batch), LOG_RATIO_BOUND)
        clipped = clipped_loss(log_ratio, batch["advantages"], math.exp(-tau), math.exp(tau))
        return TokenLoss(
            clipped.loss, {**clipped.metrics, "clip_bound": torch.full_like(log_ratio, tau)}
        )


@part("objective.surrogate", needs={"advantages", "logp_old"}, claims={"reinforce"})
@dataclass(frozen=True)
class BalancedClip:
    """PPO's clip whose range widens until positive advantages weigh enough in the loss.

    balance(low, high) = sum of A min(rho, high) over A > 0, divided by sum of -A max(rho, low) over
    A < 0. While it is below `target`, first `low` rises to at most `low_most`, then `high` to at
    most `high_most`; with no negative part it is infinite and nothing moves.

    Raising `low` only grows the counted negative part, so once entered that search always runs to
    its end; the released code does so, and this follows it. `target` is positive over negative: a
    positive share s of the whole loss is target s / (1 - s).

    BAPO, arXiv 2510.18927, as in the authors' open re-implementation.

    Attributes:
        low: First lower bound of the ratio.
        low_most: Its last.
        low_step: Its step.
        high: First upper bound of the ratio.
        high_most: Its last.
        high_step: Its step.
        target: Least balance.
        dual_clip: See `ClippedSurrogate`.
    """

    low: float = 0.6
    low_most: float = 0.9
    low_step: float = 0.05
    high: float = 1.2
    high_most: float = 3.0
    high_step: float = 0.1
    target: float = 0.5
    dual_clip: float | None = 3.0
    coupled = True

    def balance(self, ratio: Tokens, batch: Batch, low: float, high: float) -> float:
        """Positive over negative part of the loss within a range."""
        advantages = batch["advantages"].masked_fill(~batch.loss_mask, 0.0)
        positive = (advantages.clamp(min=0) * ratio.clamp(max=high)).sum()
        negative = (-advantages.clamp(max=0) * ratio.clamp(min=low)).sum()
        return float(positive / (negative + 1e-8)) if negative > 0 else math.inf

    def bounds(self, log_ratio: Tokens, batch: Batch) -> tuple[float, float]:
        """The range for this batch."""
        ratio, low, high = bounded_ratio(log_ratio), self.low, self.high
        while low < self.low_most and self.balance(ratio, batch, low, high) < self.target:
            low = min(low + self.low_step, self.low_most)
        while high < self.high_most and self.balance(ratio, batch, low, high) < self.target:
            high = min(high + self.high_step, self.high_most)
        return low, high

    def __call__(self, log_ratio: Tokens, evaluation: Evaluation, batch: Batch) -> TokenLoss:
        """Token losses [N, T]; logs the range."""
        low, high = self.bounds(log_ratio.detach(), batch)
        clipped = clipped_loss(log_ratio, batch["advantages"], low, high, self.dual_clip)
        ends = {
            "clip_range/low": torch.full_like(log_ratio, low),
            "clip_range/high": torch.full_like(log_ratio, high),
        }
        return TokenLoss(clipped.loss, {**clipped.metrics, **ends})
