"""A clip range and an advantage for each token, by how uncertain the policy is there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from polyopt.batch import Batch
from polyopt.errors import RecipeError
from polyopt.objectives.protocol import Evaluation, TokenLoss, Tokens
from polyopt.objectives.surrogates import bounded_ratio, clipped_loss
from polyopt.parts import part
from polyopt.rollouts.entropy_score import EntropyScale


@part("objective.surrogate", needs={"advantages", "logp_old", "evaluation:entropy"})
@dataclass(frozen=True)
class HeterogeneousClip:
    """PPO's dual clip with a range and an advantage that follow the entropy score h of each token.

    Where h > 0 the range opens upwards to clip_high (1 + widen h), where h <= 0 downwards to
    clip_low (1 - widen h). Tokens inside the middle half of their range are "inside". Advantages
    become A (1 + reweight h) where h > 0 outside, and where h <= 0 inside; else they stay. h is a
    constant, from the current policy's entropies over the whole optimizer batch (the authors: over
    a micro-batch).

    HAPO, "Heterogeneous Adaptive Policy Optimization" (2025): asymmetric adaptive clipping and
    differential advantage redistribution.

    Attributes:
        clip_low: Range below 1 at h = 0.
        clip_high: Range above 1 at h = 0.
        widen: alpha.
        reweight: beta.
        dual_clip: c > 1, or None for none.
        quantile: Share of tokens whose entropy is below the pivot.
        certain: Score of the most certain token (see `EntropyScale`).
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    widen: float = 1.0
    reweight: float = 1.0
    dual_clip: float | None = 3.0
    quantile: float = 0.8
    certain: float = -1.0
    coupled: ClassVar[bool] = True

    def __call__(self, log_ratio: Tokens, evaluation: Evaluation, batch: Batch) -> TokenLoss:
        """Token losses [N, T]; logs the share of tokens clipped on each side.

        Raises:
            RecipeError: The evaluation has no entropies.
        """
        if evaluation.entropy is None:
            raise RecipeError("the heterogeneous clip needs an evaluation with entropy")
        scores = self.scale(evaluation.entropy, batch).scores(evaluation.entropy)
        low, high = self.ranges(scores)
        advantages = self.redistributed(batch["advantages"], log_ratio, scores)
        return clipped_loss(log_ratio, advantages, 1 - low, 1 + high, self.dual_clip)

    def scale(self, entropy: Tokens, batch: Batch) -> EntropyScale:
        """Where the entropies of the batch's trained tokens lie."""
        return EntropyScale.of(entropy, batch.loss_mask, self.quantile, self.certain)

    def ranges(self, scores: Tokens) -> tuple[Tokens, Tokens]:
        """Width of the clip range below and above 1."""
        return (
            self.clip_low * (1 - self.widen * scores.clamp(max=0)),
            self.clip_high * (1 + self.widen * scores.clamp(min=0)),
        )

    def redistributed(self, advantages: Tokens, log_ratio: Tokens, scores: Tokens) -> Tokens:
        """Advantages by entropy and by how far the token has moved."""
        low, high = self.ranges(scores)
        ratio = bounded_ratio(log_ratio.detach())
        inside = (ratio > 1 - low / 2) & (ratio < 1 + high / 2)
        changed = torch.where(scores > 0, ~inside, inside)
        return torch.where(changed, advantages * (1 + self.reweight * scores), advantages)
