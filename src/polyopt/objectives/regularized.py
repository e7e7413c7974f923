"""Surrogates whose clip acts on more than a ratio: on a penalty too, or between three policies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from polyopt.batch import Batch
from polyopt.objectives.protocol import Evaluation, TokenLoss, Tokens
from polyopt.objectives.surrogates import bounded_ratio, clipped_loss, drift
from polyopt.parts import part


@part("objective.surrogate", needs={"advantages", "logp_old"})
@dataclass(frozen=True)
class UnnormalizedReverseKLClip:
    """PPO's dual clip with h = A - coefficient d in the advantage's place, d = log rho.

    The gradient flows through h too: inside the clip it is that of -rho A + coefficient * KL(pi ||
    old) of measures. RPG, arXiv 2505.17508, algorithm 1.

    Attributes:
        coefficient: Weight of the KL divergence.
        clip_low: The ratio is held above 1 - clip_low.
        clip_high: The ratio is held below 1 + clip_high.
        dual_clip: c > 1, or None for none.
    """

    coefficient: float = 1e-4
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float | None = 10.0
    shift: ClassVar[float] = 0.0

    def __call__(self, log_ratio: Tokens, evaluation: Evaluation, batch: Batch) -> TokenLoss:
        """Token losses [N, T]; logs the share of tokens clipped on each side."""
        regularized = batch["advantages"] - self.coefficient * (log_ratio + self.shift)
        low, high = 1 - self.clip_low, 1 + self.clip_high
        return clipped_loss(log_ratio, regularized, low, high, self.dual_clip)


@part("objective.surrogate", needs={"advantages", "logp_old"})
@dataclass(frozen=True)
class ReverseKLClip(UnnormalizedReverseKLClip):
    """The same with h = A - coefficient (d + 1): algorithm 1 for the normalised reverse KL."""

    shift: ClassVar[float] = 1.0


@part(
    "objective.surrogate",
    needs={"advantages", "logp_old", "logp_sampler"},
    claims={"reinforce"},
)
@dataclass(frozen=True)
class DecoupledClip:
    """PPO's clip around the proximal policy, weighted for the policy that really sampled.

    L = max(-A pi / b, -A clip(pi / old, 1 - clip, 1 + clip) old / b), with b the behaviour policy
    (`logp_sampler`), raised where needed so that pi / b <= cap. Where the cap doesn't bind this is
    old / b (`selection/TruncatedIS`) times PPO's surrogate. Without a clip (None) only the first
    term remains, for use with a penalty on the step (`squared_step`).

    PPO-EWMA, arXiv 2110.00641; AReaL's objective (arXiv 2505.24298) is the same with `old` freshly
    evaluated and a cap on old / b instead.

    Attributes:
        clip: Half-width of the clip range; None for no clip.
        cap: Largest ratio of the current to the behaviour policy.
    """

    clip: float | None = 0.2
    cap: float = 100.0

    def __call__(self, log_ratio: Tokens, evaluation: Evaluation, batch: Batch) -> TokenLoss:
        """Token losses [N, T]; logs the share of tokens clipped on each side, and capped."""
        advantages, logp, old = batch["advantages"], evaluation.logp, batch["logp_old"]
        least = logp.detach() - math.log(self.cap)
        behaviour = torch.maximum(batch["logp_sampler"], least)
        free = -advantages * bounded_ratio(logp - behaviour)
        metrics = {"weight/bounded": (least > batch["logp_sampler"]).to(free.dtype)}
        if self.clip is None:
            return TokenLoss(free, metrics | drift(log_ratio))
        step = log_ratio.clamp(math.log(1 - self.clip), math.log(1 + self.clip))
        held = -advantages * bounded_ratio(step + old - behaviour)
        clipped = held > free
        metrics["clip/high"] = (clipped & (advantages > 0)).to(free.dtype)
        metrics["clip/low"] = (clipped & (advantages < 0)).to(free.dtype)
        return TokenLoss(torch.maximum(free, held), metrics | drift(log_ratio))
