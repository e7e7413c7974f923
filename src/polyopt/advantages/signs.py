"""Credit of one sign only."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from polyopt.batch import Batch
from polyopt.parts import part


@part("advantages.shaping")
def negative_part(advantages: Float[Tensor, "N T"], batch: Batch) -> Float[Tensor, "N T"]:
    """A <- min(A, 0): only what is worse than the group is pushed down.

    The sign is that of the relative advantage, not of the raw reward (as in `psr-nsr`); what is
    silenced stays in the denominators. GRPO-N and GSPO-N, arXiv 2510.04028.
    """
    return advantages.clamp(max=0.0)
