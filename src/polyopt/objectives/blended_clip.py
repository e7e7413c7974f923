"""Two clipped losses of one ratio, blended token by token."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from polyopt.batch import Batch
from polyopt.objectives.protocol import Evaluation, TokenLoss, Tokens
from polyopt.objectives.surrogates import clipped_loss
from polyopt.parts import part


def local_weight(batch: Batch) -> Tokens:
    """`local_weight` where the local advantage isn't 0; there the global one counts alone."""
    return torch.where(batch["advantages"] != 0, batch["local_weight"], 0.0)


@part(
    "objective.surrogate",
    needs={"advantages", "logp_old", "global_advantages", "local_weight"},
)
@dataclass(frozen=True)
class BlendedClip:
    """L_t = w clip-loss(A_local) + (1 - w) clip-loss(A_global), both with dual clip.

    w is `local_weight` where A_local isn't 0, else 0: equal rewards leave the global signal alone.
    COPO, "Consistency-Aware Policy Optimization", arXiv 2508.04138 ("soft with forced" blending).

    Attributes:
        clip_low: The ratio is held above 1 - clip_low.
        clip_high: The ratio is held below 1 + clip_high.
        dual_clip: Bound of the ratio that a negative advantage is multiplied with.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float = 3.0

    def __call__(self, log_ratio: Tokens, evaluation: Evaluation, batch: Batch) -> TokenLoss:
        """Token losses [N, T]; logs the share of tokens clipped in the local loss."""
        w = local_weight(batch)
        local = self._clipped(log_ratio, batch["advantages"])
        whole = self._clipped(log_ratio, batch["global_advantages"])
        blended = w * local.loss + (1 - w) * whole.loss
        return TokenLoss(blended, {**local.metrics, "blend/local": w})

    def _clipped(self, log_ratio: Tokens, advantages: Tokens) -> TokenLoss:
        low, high = 1 - self.clip_low, 1 + self.clip_high
        return clipped_loss(log_ratio, advantages, low, high, self.dual_clip)
