"""Surrogates: the policy-gradient term, token by token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polyopt.batch import Batch
from polyopt.divergences import LOG_RATIO_BOUND as LOG_RATIO_BOUND
from polyopt.divergences import bounded_exp
from polyopt.objectives.protocol import Evaluation, TokenLoss, Tokens
from polyopt.parts import part


def bounded_ratio(log_ratio: Tokens) -> Tokens:
    """exp of the log-ratio held to +-20.

    The bound sits inside the graph, so tokens past it get no gradient; `log_ratio/bounded` counts
    them.
    """
    return bounded_exp(log_ratio)


def drift(log_ratio: Tokens) -> dict[str, Tensor]:
    """What every ratio-based surrogate logs: the raw log-ratio, and how often it was bounded."""
    return {
        "log_ratio/mean": log_ratio,
        "log_ratio/abs": log_ratio.abs(),
        "log_ratio/bounded": (log_ratio.abs() > LOG_RATIO_BOUND).to(log_ratio.dtype),
    }


def clipped_loss(
    log_ratio: Tokens,
    advantages: Tokens,
    low: float | Tensor,
    high: float | Tensor,
    dual_clip: float | None = None,
) -> TokenLoss:
    """L_t = max(-A rho, -A clip(rho, low, high)), at most -A dual_clip where A < 0.

    Tokens whose gradient ends are logged as `clip/high`, `clip/low` and `clip/dual`.

    Args:
        log_ratio: Logarithm of rho, [N, T].
        advantages: A, [N, T].
        low: Least ratio.
        high: Largest ratio.
        dual_clip: Largest ratio that a negative advantage is multiplied with; None for none.
    """
    ratio = bounded_ratio(log_ratio)
    free = -advantages * ratio
    held = -advantages * ratio.clamp(low, high)  # type: ignore[arg-type]
    loss = torch.maximum(free, held)
    clipped = held > free
    metrics = {
        "clip/high": (clipped & (advantages > 0)).to(loss.dtype),
        "clip/low": (clipped & (advantages < 0)).to(loss.dtype),
    }
    if dual_clip is not None:
        cap = -advantages * dual_clip
        capped = (advantages < 0) & (loss > cap)
        loss = torch.where(advantages < 0, torch.minimum(loss, cap), loss)
        metrics["clip/dual"] = capped.to(loss.dtype)
    return TokenLoss(loss, metrics | drift(log_ratio))


@part("objective.surrogate", needs={"advantages"}, claims={"reinforce"})
@dataclass(frozen=True)
class PolicyGradient:
    """L_t = -A_t logp_t: the score-function gradient, on-policy (REINFORCE; Williams 1992)."""

    def __call__(self, log_ratio: Tokens, evaluation: Evaluation, batch: Batch) -> TokenLoss:
        """Token losses [N, T]."""
        return TokenLoss(-batch["advantages"] * evaluation.logp, drift(log_ratio))


@part("objective.surrogate", needs={"advantages", "logp_old"}, claims={"reinforce"})
@dataclass(frozen=True)
class ImportanceWeighted:
    """L_t = -A_t rho_t: the off-policy surrogate with no limit of its own (TRPO's objective).

    Meant to be limited by what stands around it: a trust region, a clipped ratio, a line search.
    """

    def __call__(self, log_ratio: Tokens, evaluation: Evaluation, batch: Batch) -> TokenLoss:
        """Token losses [N, T]."""
        return TokenLoss(-batch["advantages"] * bounded_ratio(log_ratio), drift(log_ratio))


@part("objective.surrogate", needs={"advantages", "logp_old"}, claims={"reinforce"})
@dataclass(frozen=True)
class ClippedSurrogate:
    """L_t = max(-A rho, -A clip(rho, 1 - clip_low, 1 + clip_high)), capped where A < 0.

    With `dual_clip` c the loss of a negative advantage is at most -A c, which also ends its
    gradient there. PPO, arXiv 1707.06347, eq. 7; dual clip, arXiv 1912.09729, eq. 5.

    Attributes:
        clip_low: The ratio is held above 1 - clip_low.
        clip_high: The ratio is held below 1 + clip_high.
        dual_clip: c > 1, or None for none.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None

    def __call__(self, log_ratio: Tokens, evaluation: Evaluation, batch: Batch) -> TokenLoss:
        """Token losses [N, T]; logs the share of tokens clipped on each side."""
        low, high = 1 - self.clip_low, 1 + self.clip_high
        return clipped_loss(log_ratio, batch["advantages"], low, high, self.dual_clip)


@part("objective.surrogate", needs={"advantages", "logp_old"}, claims={"reinforce"})
@dataclass(frozen=True)
class ClippedImportanceWeight:
    """L_t = -sg(clip(rho_t, 1 - clip_low, 1 + clip_high)) A_t logp_t: the weight is bounded, and
    no token loses its gradient.

    CISPO, arXiv 2506.13585; with old = sampler and an upper bound only it is the truncated
    importance sampling of `tis` in one loss. The report tunes the upper bound and doesn't print it.

    Attributes:
        clip_low: The weight is held above 1 - clip_low; None for no lower bound.
        clip_high: The weight is held below 1 + clip_high.
    """

    clip_low: float | None = None
    clip_high: float = 0.2

    def __call__(self, log_ratio: Tokens, evaluation: Evaluation, batch: Batch) -> TokenLoss:
        """Token losses [N, T]; logs the share of bounded weights as `weight/bounded`."""
        ratio = bounded_ratio(log_ratio.detach())
        low = None if self.clip_low is None else 1 - self.clip_low
        weight = ratio.clamp(low, 1 + self.clip_high)
        bounded = (weight != ratio).to(ratio.dtype)
        loss = -weight * batch["advantages"] * evaluation.logp
        return TokenLoss(loss, {"weight/bounded": bounded} | drift(log_ratio))
