"""Corrections for data that another policy sampled: weights and rejections, fixed before training.

The behaviour policy is the one whose log-probabilities the engine reported (`logp_sampler`: other
numerics, older weights); `logp_old` are the trainer's own, just before the update. Both are known
before the first optimizer step and neither depends on the policy being trained, so what follows
from them belongs to the selection stage: a weight on the loss, which leaves denominators alone, or
a smaller loss mask, which leaves them too. z = logp_old - logp_sampler.

"Your Efficient RL Framework Secretly Brings You Off-Policy RL Training" (Yao et al. 2025), with the
levels and rejection rules of verl's rollout correction; AReaL, arXiv 2505.24298.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool
from torch import Tensor

from polyopt.batch import FORCED, Batch
from polyopt.divergences import LOG_RATIO_BOUND, Divergence, UnnormalizedForwardKL, bounded_exp
from polyopt.levels import EachToken, Level, RolloutMean, RolloutSum, Tokens, rollout_mean
from polyopt.parts import part

NEEDS = frozenset({"logp_old", "logp_sampler"})


def mismatch(batch: Batch) -> Tokens:
    """z = logp_old - logp_sampler in nats, [N, T].

    0 outside the loss mask, and where no sampler's log-probability is known: at tokens that were
    given (a demonstration), or where it isn't finite.
    """
    known = batch.loss_mask
    if "provenance" in batch:
        known = known & (batch["provenance"] != FORCED)
    gap = (batch["logp_old"] - batch["logp_sampler"]).masked_fill(~known, 0.0)
    return torch.where(gap.isfinite(), gap, torch.zeros_like(gap))


def weighted(batch: Batch, weights: Tokens) -> Batch:
    """The batch with its token weights multiplied by others; 0 at tokens that don't train."""
    before = batch.columns.get("weights", torch.ones_like(weights))
    return batch.replace(weights=(before * weights).masked_fill(~batch.loss_mask, 0.0))


@part("selection.parts", needs=NEEDS)
def sampler_as_old(batch: Batch) -> Batch:
    """The ratio's denominator is what the engine reported: `logp_old` becomes `logp_sampler`.

    One ratio then holds mismatch and policy step together, and no further weight is due (verl's
    bypass mode). For rollouts resumed by newer weights it is the policy that sampled each segment
    (SAIS of UloRL, arXiv 2507.19766); without it, all tokens count as the newest policy's (POIS).
    """
    return batch.replace(logp_old=batch["logp_sampler"])


@part("selection.parts", needs=NEEDS)
@dataclass(frozen=True)
class TruncatedIS:
    """weight = min(exp(z), cap): importance weights cut off from above only.

    At the level of each token, of the whole completion (`RolloutSum`) or of its geometric mean
    (`RolloutMean`). TIS, Yao et al. 2025; AReaL's clamp.

    Attributes:
        cap: Largest weight (2 in the blog, 2 to 5 in use).
        level: Which tokens share a weight.
    """

    cap: float = 2.0
    level: Level = field(default_factory=EachToken)

    def __call__(self, batch: Batch) -> Batch:
        """The batch with weighted tokens."""
        ratio = bounded_exp(self.level(mismatch(batch), batch))
        return weighted(batch, ratio.clamp(max=self.cap))


@part("selection.parts", needs=NEEDS)
@dataclass(frozen=True)
class MaskedIS:
    """weight = exp(z) where it is at most `cap`, else 0: too heavy tokens are dropped.

    They stay in the denominators, as in AReaL's code (arXiv 2505.24298, with cap 5).

    Attributes:
        cap: Largest weight that is kept.
        level: Which tokens share a weight.
    """

    cap: float = 5.0
    level: Level = field(default_factory=EachToken)

    def __call__(self, batch: Batch) -> Batch:
        """The batch with weighted tokens."""
        ratio = bounded_exp(self.level(mismatch(batch), batch))
        return weighted(batch, ratio.masked_fill(ratio > self.cap, 0.0))


@part("selection.parts")
def unit_mean_token_weights(batch: Batch) -> Batch:
    """Weights divided by their mean over the trained tokens of the rollout batch.

    Left alone where that mean is 1e-8 or less. Put it right after `TruncatedIS` at token level
    (verl's batch normalisation); weights may then exceed its cap.
    """
    return _divided(batch, (_weights(batch).sum() / batch.loss_mask.sum().clamp(min=1)))


@part("selection.parts")
def unit_mean_rollout_weights(batch: Batch) -> Batch:
    """Weights divided by the mean over rollouts of their mean weight: for rollout-level weights."""
    live = batch.loss_mask.any(1)
    each = rollout_mean(_weights(batch), batch)
    seen = torch.unique(batch.rollout[live], return_inverse=True)[1]
    rows = each[live]
    first = rows.new_zeros(int(seen.max()) + 1 if len(seen) else 0).scatter(0, seen, rows)
    return _divided(batch, first.sum() / max(len(first), 1))


def _weights(batch: Batch) -> Tokens:
    ones = torch.ones(batch.mask.shape, dtype=batch.rewards.dtype, device=batch.mask.device)
    return batch.columns.get("weights", ones).masked_fill(~batch.loss_mask, 0.0)


def _divided(batch: Batch, mean: Tensor) -> Batch:
    weights = _weights(batch)
    return batch.replace(weights=weights / mean if float(mean) > 1e-8 else weights)


@part("selection.parts", needs=NEEDS)
@dataclass(frozen=True)
class RejectByRatio:
    """Trains only tokens with log(least) <= -z <= log(most): sampler over trainer within a window.

    Above token level whole rollouts stay or go; what goes leaves the denominators. (The k1 rules of
    verl's rejection; note that it bounds the sampler's probability over the trainer's.)

    Attributes:
        most: Upper bound of exp(-z).
        least: Lower bound; None for 1 / most.
        level: Whose z is judged.
    """

    most: float = 2.0
    least: float | None = None
    level: Level = field(default_factory=EachToken)

    def __call__(self, batch: Batch) -> Batch:
        """The batch with a smaller loss mask."""
        least = 1 / self.most if self.least is None else self.least
        judged = self.level(-_held(batch), batch)
        return _kept(batch, (judged >= math.log(least)) & (judged <= math.log(self.most)))


@part("selection.parts", needs=NEEDS)
@dataclass(frozen=True)
class RejectByDivergence:
    """Trains only tokens with D(z) <= most; above token level whole rollouts stay or go.

    `UnnormalizedForwardKL` is k3 with the engine's policy as sampler, `K2` is k2: verl's rules, at
    token, sum, mean and max level.

    Attributes:
        most: Upper bound of the divergence, in nats.
        divergence: D.
        level: Whose divergence is judged.
    """

    most: float = 0.1
    divergence: Divergence = field(default_factory=UnnormalizedForwardKL)
    level: Level = field(default_factory=RolloutMean)

    def __call__(self, batch: Batch) -> Batch:
        """The batch with a smaller loss mask."""
        judged = self.level(self.divergence(_held(batch)), batch)
        return _kept(batch, judged <= self.most)


def _held(batch: Batch) -> Tokens:
    """z held to +-20."""
    return mismatch(batch).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def _kept(batch: Batch, keep: Bool[Tensor, "N T"]) -> Batch:
    return batch.replace(loss_mask=batch.loss_mask & keep)


def rollout_tis(cap: float = 2.0) -> TruncatedIS:
    """TIS for the completion as one action: min(exp(sum_t z), cap)."""
    return TruncatedIS(cap, RolloutSum())
