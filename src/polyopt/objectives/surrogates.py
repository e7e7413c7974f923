"""Surrogates: the policy-gradient term, token by token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polyopt.batch import Batch
from polyopt.objectives.protocol import Evaluation, TokenLoss, Tokens
from polyopt.parts import part

LOG_RATIO_BOUND = 20.0
"""Log-ratios are held to +-20 before exp: beyond, the ratio is noise and its gradient would be inf.

The bound sits inside the graph, so tokens past it get no gradient; `log_ratio/bounded` counts them.
"""


def bounded_ratio(log_ratio: Tokens) -> Tokens:
    """exp of the log-ratio held to +-20."""
    return log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()


def drift(log_ratio: Tokens) -> dict[str, Tensor]:
    """What every ratio-based surrogate logs: the raw log-ratio, and how often it was bounded."""
    return {
        "log_ratio/mean": log_ratio,
        "log_ratio/abs": log_ratio.abs(),
        "log_ratio/bounded": (log_ratio.abs() > LOG_RATIO_BOUND).to(log_ratio.dtype),
    }


@part("objective.surrogate", needs={"advantages"}, claims={"reinforce"})
@dataclass(frozen=True)
class PolicyGradient:
    """L_t = -A_t logp_t: the score-function gradient, on-policy (REINFORCE; Williams 1992)."""

    def __call__(self, log_ratio: Tokens, evaluation: Evaluation, batch: Batch) -> TokenLoss:
        """Token losses [N, T]."""
        return TokenLoss(-batch["advantages"] * evaluation.logp, drift(log_ratio))


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
        advantages = batch["advantages"]
        ratio = bounded_ratio(log_ratio)
        free = -advantages * ratio
        held = -advantages * ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        loss = torch.maximum(free, held)
        clipped = held > free
        metrics = {
            "clip/high": (clipped & (advantages > 0)).to(loss.dtype),
            "clip/low": (clipped & (advantages < 0)).to(loss.dtype),
        }
        if self.dual_clip is not None:
            cap = -advantages * self.dual_clip
            capped = (advantages < 0) & (loss > cap)
            loss = torch.where(advantages < 0, torch.minimum(loss, cap), loss)
            metrics["clip/dual"] = capped.to(loss.dtype)
        return TokenLoss(loss, metrics | drift(log_ratio))
