"""More credit for the tokens in which a completion plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from polyopt.batch import Batch
from polyopt.parts import part


def in_grams(
    tokens: Int[Tensor, "N T"], mask: Bool[Tensor, "N T"], grams: Sequence[Sequence[int]]
) -> Bool[Tensor, "N T"]:
    """Tokens inside an occurrence of any of the n-grams that lies in the mask as a whole."""
    found = torch.zeros_like(mask)
    for length in sorted({len(gram) for gram in grams} - {0}):  # a few lengths
        if length > tokens.shape[1]:
            break
        same = torch.tensor([g for g in grams if len(g) == length], device=tokens.device)
        start = torch.isin(tokens, same[:, 0])
        start[:, tokens.shape[1] - length + 1 :] = False
        row, place = start.nonzero().unbind(1)
        spot = place[:, None] + torch.arange(length, device=tokens.device)
        window, inside = tokens[row[:, None], spot], mask[row[:, None], spot].all(1)
        names = torch.unique(torch.cat([same, window]), dim=0, return_inverse=True)[1].reshape(-1)
        hit = torch.isin(names[len(same) :], names[: len(same)]) & inside
        found[row[hit][:, None], spot[hit]] = True
    return found


@part("advantages.shaping", needs={"tokens"})
@dataclass(frozen=True)
class PlanningTokens:
    """A_t += alpha |A_t| on tokens of a strategic gram: praised more, blamed less.

    Strategic grams are n-grams of words that steer a solution (to deduce, to branch, to go back);
    the paper mines them by clustering those of right solutions and keeping the most frequent
    clusters. Overlapping occurrences count once. HICRA, arXiv 2509.03646.

    Attributes:
        alpha: Amplification; below 1, so that blame stays blame.
        grams: Token-id n-grams, in the model's own tokenization.
    """

    alpha: float = 0.2
    grams: tuple[tuple[int, ...], ...] = ()

    def __call__(self, advantages: Float[Tensor, "N T"], batch: Batch) -> Float[Tensor, "N T"]:
        """Advantages [N, T]."""
        planning = in_grams(batch["tokens"], batch.mask, self.grams)
        return advantages + self.alpha * advantages.abs() * planning
