"""Credit by how likely a token was."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from polyopt.batch import Batch
from polyopt.parts import part


def sampled_probability(batch: Batch) -> Float[Tensor, "N T"]:
    """Probability of each token under the policy before the update, no gradient; 0 outside mask."""
    logp = batch["logp_old"] if "logp_old" in batch else batch["logp_sampler"]
    return logp.masked_fill(~batch.mask, 0.0).exp() * batch.mask


@part("advantages.shaping", needs={"logp_sampler"})
@dataclass(frozen=True)
class ProbabilityReweight:
    """A_t <- (alpha p_t + 1 - alpha) A_t: unlikely tokens, whose gradients are large, count less.

    p is the probability under the policy before the update. Comes after any normalisation and isn't
    normalised again.

    Advantage Reweighting, "Do Not Let Low-Probability Tokens Over-Dominate in RL for LLMs" (2025).

    Attributes:
        alpha: 0 changes nothing; 0.2 alone, 0.3 with `lopti` (official scripts).
    """

    alpha: float = 0.2

    def __call__(self, advantages: Float[Tensor, "N T"], batch: Batch) -> Float[Tensor, "N T"]:
        """Advantages [N, T]."""
        return (self.alpha * sampled_probability(batch) + 1 - self.alpha) * advantages
