"""The policy as its own verifier: one more supervised token per rollout."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import cross_entropy


def verifier_score(verdict_logits: Float[Tensor, "N 2"]) -> Float[Tensor, " N"]:
    """p(Yes): what best-of-n picks by, and what weighted votes add up."""
    return verdict_logits.softmax(-1)[:, 0]


@dataclass(frozen=True)
class VerdictLikelihood:
    """coefficient * mean_i -log p(z_i | x, y_i, "Is this solution correct?"), z = Yes if right.

    Logits of "Yes" and "No", in this order, come from the same network on the rollout that RL has
    already sampled; added to any policy loss. RL^V, arXiv 2505.04842 (the softmax over two tokens
    and the coefficient are reconstructed).

    Attributes:
        coefficient: lambda.
    """

    coefficient: float = 1.0

    def __call__(
        self, verdict_logits: Float[Tensor, "N 2"], right: Bool[Tensor, " N"]
    ) -> Float[Tensor, ""]:
        """Scalar loss; 0 of no rollouts."""
        total = cross_entropy(verdict_logits, (~right).long(), reduction="sum")
        return self.coefficient * total / max(len(right), 1)
