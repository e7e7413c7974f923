"""A fixed number of tokens per step."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from polyopt.batch import Batch
from polyopt.draws import uniforms
from polyopt.parts import part


@part("selection.parts")
@dataclass(frozen=True)
class TokenBudget:
    """Rollouts in random order train until `budget` tokens are reached; the last one is cut there.

    A cut rollout keeps the advantage of the whole. Fewer tokens than the budget all train. The
    order is that of the first draw of each rollout (`polyopt.draws`).

    C3PO, arXiv 2506.14731 (fill order and cut reconstructed from a secondary description).

    Attributes:
        budget: Tokens that train, at most.
    """

    budget: int = 409600

    def __call__(self, batch: Batch) -> Batch:
        """The batch with a smaller loss mask."""
        order = uniforms(batch)[:, 0].argsort(stable=True)
        mask = batch.loss_mask[order]
        number = mask.flatten().cumsum(0).view_as(mask)
        kept = torch.zeros_like(mask)
        kept[order] = mask & (number <= self.budget)
        return batch.replace(loss_mask=kept)
