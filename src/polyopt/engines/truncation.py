"""`apply_distribution` without sorting whole vocabularies."""

from __future__ import annotations

import dataclasses

from jaxtyping import Float
from torch import Tensor

from polyopt.engines.protocol import Distribution, apply_distribution

CANDIDATES = 256
"""Most likely tokens among which the nucleus usually ends."""


def truncated(logits: Float[Tensor, "R V"], distribution: Distribution) -> Float[Tensor, "R V"]:
    """The same as `apply_distribution`, with the top-p cut found among the most likely tokens.

    Rows whose nucleus is larger than `CANDIDATES` tokens are sorted as a whole.
    """
    if distribution.top_p >= 1.0 or logits.shape[-1] <= CANDIDATES:
        return apply_distribution(logits, distribution)
    logits = apply_distribution(logits, dataclasses.replace(distribution, top_p=1.0, min_p=0.0))
    top, index = logits.topk(CANDIDATES, dim=-1)
    probabilities = (top - logits.logsumexp(-1, keepdim=True)).exp()
    before = probabilities.cumsum(-1) - probabilities
    kept = top.masked_fill(before >= distribution.top_p, float("-inf"))
    nucleus = logits.new_full(logits.shape, float("-inf")).scatter_(-1, index, kept)
    wide = before[:, -1] < distribution.top_p
    if bool(wide.any()):
        nucleus[wide] = apply_distribution(logits[wide], Distribution(top_p=distribution.top_p))
    return apply_distribution(nucleus, Distribution(min_p=distribution.min_p))
