"""Clips as masks: tokens whose ratio is out of range lose their term, whatever the surrogate."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Bool
from torch import Tensor

from polyopt.batch import Batch
from polyopt.objectives.protocol import Evaluation, TokenLoss, Tokens
from polyopt.objectives.surrogates import bounded_ratio
from polyopt.parts import part


@part("objective.trust_region", needs={"logp_old"})
@dataclass(frozen=True)
class TwoSideMask:
    """Keeps tokens with 1 - clip_low <= rho <= 1 + clip_high, whatever the advantage's sign.

    Dropped tokens stay in the denominator. With `ClippedImportanceWeight` it is REC-TwoSide-IS of
    "Group-Relative REINFORCE Is Secretly an Off-Policy Algorithm", arXiv 2509.24203.

    Attributes:
        clip_low: Least ratio is 1 - clip_low.
        clip_high: Largest ratio is 1 + clip_high.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2

    def kept(self, log_ratio: Tokens, batch: Batch) -> Bool[Tensor, "N T"]:
        """Tokens that stay, [N, T]."""
        ratio = bounded_ratio(log_ratio.detach())
        return (ratio >= 1 - self.clip_low) & (ratio <= 1 + self.clip_high)

    def __call__(
        self, token_loss: TokenLoss, log_ratio: Tokens, evaluation: Evaluation, batch: Batch
    ) -> TokenLoss:
        """Token losses [N, T]; logs the share that was dropped."""
        out = ~self.kept(log_ratio, batch)
        metrics = {**token_loss.metrics, "mask/ratio": out.to(log_ratio.dtype)}
        return TokenLoss(token_loss.loss.masked_fill(out, 0.0), metrics)


@part("objective.trust_region", needs={"advantages", "logp_old"})
@dataclass(frozen=True)
class RingMask(TwoSideMask):
    """`TwoSideMask`, and tokens that have moved far against their advantage.

    Also kept: rho <= 1 - far_low where A >= 0, and rho >= 1 + far_high where A <= 0. The ring
    between the two ranges is dropped. REC-Ring of arXiv 2509.24203.

    Attributes:
        clip_low: Least ratio of the inner range is 1 - clip_low.
        clip_high: Largest ratio of the inner range is 1 + clip_high.
        far_low: A token to be reinforced counts again below 1 - far_low.
        far_high: A token to be suppressed counts again above 1 + far_high.
    """

    far_low: float = 0.6
    far_high: float = 2.0

    def kept(self, log_ratio: Tokens, batch: Batch) -> Bool[Tensor, "N T"]:
        """Tokens that stay, [N, T]."""
        ratio, advantages = bounded_ratio(log_ratio.detach()), batch["advantages"]
        fallen = (advantages >= 0) & (ratio <= 1 - self.far_low)
        risen = (advantages <= 0) & (ratio >= 1 + self.far_high)
        return super().kept(log_ratio, batch) | fallen | risen
