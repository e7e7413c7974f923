"""What tokens are drawn from: one transform of the logits, used by sampler and trainer alike."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

CANDIDATES = 256
"""Most likely tokens among which the nucleus of top-p usually ends."""


@dataclass(frozen=True)
class Distribution:
    """The distribution that tokens are drawn from, as a transform of the model's logits.

    Sampler and trainer both use it, so log-probabilities are those of what was really sampled.

    Attributes:
        temperature: Divides the logits; 0 means greedy decoding.
        top_k: Keep the k most likely tokens; 0 keeps all.
        top_p: Keep the most likely tokens up to this total probability; 1 keeps all.
        min_p: Drop tokens less likely than this fraction of the most likely one; 0 keeps all.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    @property
    def truncated(self) -> bool:
        """Whether some tokens are cut off."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0


def apply_distribution(
    logits: Float[Tensor, "*B V"], distribution: Distribution
) -> Float[Tensor, "*B V"]:
    """Logits of the distribution that is sampled from; cut tokens get -inf.

    Cuts are made in the order top-k, top-p, min-p on the tempered logits. A temperature of 0 is
    left to the caller (greedy decoding is not a distribution to train on). The nucleus of top-p is
    looked for among the most likely tokens; only where it doesn't end there is a row sorted whole.
    """
    if distribution.top_p >= 1.0 or logits.shape[-1] <= CANDIDATES:
        return apply_by_sorting(logits, distribution)
    logits = apply_by_sorting(logits, dataclasses.replace(distribution, top_p=1.0, min_p=0.0))
    top, index = logits.topk(CANDIDATES, dim=-1)
    probabilities = (top - logits.logsumexp(-1, keepdim=True)).exp()
    before = probabilities.cumsum(-1) - probabilities
    kept = top.masked_fill(before >= distribution.top_p, float("-inf"))
    nucleus = logits.new_full(logits.shape, float("-inf")).scatter(-1, index, kept)
    wide = before[..., -1] < distribution.top_p
    if bool(wide.any()):
        whole = apply_by_sorting(logits[wide], Distribution(top_p=distribution.top_p))
        nucleus = nucleus.masked_scatter(wide[..., None].expand_as(nucleus), whole)
    return apply_by_sorting(nucleus, Distribution(min_p=distribution.min_p))


def apply_by_sorting(
    logits: Float[Tensor, "*B V"], distribution: Distribution
) -> Float[Tensor, "*B V"]:
    """`apply_distribution` in the obvious way, sorting each row for top-p."""
    if distribution.temperature not in (0.0, 1.0):
        logits = logits / distribution.temperature
    if not distribution.truncated:
        return logits
    if 0 < distribution.top_k < logits.shape[-1]:
        kth = logits.topk(distribution.top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < kth, float("-inf"))
    if distribution.top_p < 1.0:
        ordered, index = logits.sort(dim=-1, descending=True)
        probs = ordered.softmax(-1)
        cut = probs.cumsum(-1) - probs >= distribution.top_p
        logits = logits.masked_fill(cut.scatter(-1, index, cut), float("-inf"))
    if distribution.min_p > 0.0:
        probs = logits.softmax(-1)
        low = probs < distribution.min_p * probs.amax(-1, keepdim=True)
        logits = logits.masked_fill(low, float("-inf"))
    return logits
