"""A clip range for each token, from its old probability."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from polyopt.batch import Batch
from polyopt.objectives.protocol import Evaluation, TokenLoss, Tokens
from polyopt.objectives.surrogates import clipped_loss
from polyopt.parts import part


@part("objective.surrogate", needs={"advantages", "logp_old"}, claims={"reinforce"})
@dataclass(frozen=True)
class DynamicClip:
    """PPO's clip with bounds that solve |rho - 1| q rho <= e for the old probability q of a token:

    low = (1 + sqrt(max(1 - 4 e_low / q, 0))) / 2,
    high = min((1 + sqrt(1 + 4 e_high / q)) / 2, max(r_max, 10)); for A < 0 the loss is at most
    -A r_max. Rare tokens have more room. DCPO, "Dynamic Clipping Policy Optimization",
    arXiv 2509.02333.

    Attributes:
        clip_low: e_low.
        clip_high: e_high.
        most: r_max, the largest ratio that a negative advantage is multiplied with.
    """

    clip_low: float = 0.2
    clip_high: float = 0.28
    most: float = 10.0

    def bounds(self, logp_old: Tokens) -> tuple[Tokens, Tokens]:
        """Least and largest ratio of each token."""
        rarity: Tensor = 4 * (-logp_old).exp()
        low = (1 + (1 - self.clip_low * rarity).clamp(min=0).sqrt()) / 2
        high = (1 + (1 + self.clip_high * rarity).sqrt()) / 2
        return low, high.clamp(max=max(self.most, 10.0))

    def __call__(self, log_ratio: Tokens, evaluation: Evaluation, batch: Batch) -> TokenLoss:
        """Token losses [N, T]; logs the share of tokens clipped on each side."""
        low, high = self.bounds(batch["logp_old"].detach())
        return clipped_loss(log_ratio, batch["advantages"], low, high, self.most)
