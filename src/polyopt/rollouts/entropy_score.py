"""Entropy scores: where a token's entropy stands in its batch, from -1 (certain) to 1 (a fork).

The ingredient of HAPO, "Heterogeneous Adaptive Policy Optimization" (2025): temperature, clip range
and advantage of a token all follow it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

LEAST = 1e-8
"""Floor of entropies before the logarithm, and of every divisor."""


@dataclass(frozen=True)
class EntropyScale:
    """Where log-entropies of a batch lie: scores of other tokens are read off the same scale.

    Attributes:
        pivot: Log-entropy with score 0: a quantile of the batch.
        std: Root mean square distance from the pivot.
        rise: Factor that brings the batch's largest positive score to 1.
        fall: Factor that brings its most negative one to the score of the most certain token.
    """

    pivot: float
    std: float
    rise: float
    fall: float

    @classmethod
    def of(
        cls,
        entropy: Float[Tensor, "N T"],
        mask: Bool[Tensor, "N T"],
        quantile: float = 0.8,
        certain: float = -1.0,
    ) -> EntropyScale:
        """The scale of the entropies [nats] of a batch's masked tokens.

        The pivot is the value at place round(quantile * (n - 1)). (The authors' docstring says
        median; their code takes the 0.8 quantile.) An empty mask gives scores of 0.

        Args:
            entropy: Entropies.
            mask: Tokens that count.
            quantile: Share of tokens below the pivot.
            certain: Score of the most certain token. At 1 tokens on both sides of the pivot score
                alike, which is what dividing by a minimum that is negative comes to.
        """
        logs = entropy.detach()[mask].clamp(min=LEAST).log().sort().values
        if not len(logs):
            return cls(0.0, 1.0, 0.0, 0.0)
        pivot = logs[round(quantile * (len(logs) - 1))]
        std = (logs - pivot).square().mean().sqrt().clamp(min=LEAST)
        away = (logs - pivot) / std
        rise, fall = (1 / float(side.clamp(min=LEAST)) for side in (away.max(), -away.min()))
        return cls(float(pivot), float(std), rise, -certain * fall)

    def scores(self, entropy: Float[Tensor, "N T"]) -> Float[Tensor, "N T"]:
        """h of each token of the batch itself; constants, within [-1, 1]."""
        away = (entropy.detach().clamp(min=LEAST).log() - self.pivot) / self.std
        return torch.where(away > 0, away * self.rise, away * self.fall).clamp(-1, 1)

    def temperatures(
        self, entropy: Float[Tensor, "*B"], temperature: float = 1.0, strength: float = 0.05
    ) -> Float[Tensor, "*B"]:
        """temperature * (1 + strength * h) for next-token distributions of a later step.

        `entropy` is theirs at temperature 1, in nats.
        """
        away = (entropy.clamp(min=1e-6).log() - self.pivot) / (self.std + 1e-6)
        scaled = torch.where(away > 0, away * self.rise, away * self.fall).clamp(-1, 1)
        return temperature * (1 + strength * scaled)
