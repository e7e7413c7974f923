"""Tokens by the weights that sampled them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from polyopt.batch import Batch
from polyopt.parts import part


@part("selection.parts", needs={"provenance"})
def newest_tokens(batch: Batch) -> Batch:
    """Only tokens that the newest weights in the batch sampled train: those of the current window.

    Of a rollout that is sampled over several steps, each token so trains once, and on-policy.
    T-PPO, arXiv 2506.15050 (token filtering; reconstructed from the abstract).
    """
    if not batch.loss_mask.any():
        return batch
    version = batch["provenance"]
    return batch.replace(loss_mask=batch.loss_mask & (version == version.max()))


@part("selection.screens", needs={"provenance"})
@dataclass(frozen=True)
class StalenessLimit:
    """Keeps rollouts whose oldest token is at most `most` weight versions behind the newest.

    AReaL, arXiv 2505.24298 (there also held by throttling generation; see `admissible`).

    Attributes:
        most: eta, largest staleness in weight versions.
    """

    most: int = 4

    def __call__(self, batch: Batch) -> Bool[Tensor, " N"]:
        """Rows to keep."""
        version = batch["provenance"]
        if not batch.mask.any():
            return torch.ones(len(batch), dtype=torch.bool)
        newest = int(version.max())
        oldest = torch.where(batch.mask, version, newest).amin(1)
        return newest - oldest <= self.most


def admissible(version: int, staleness: int, batch_size: int, submitted: int) -> int:
    """Rollouts that a sampler may still start: (version + eta + 1) * batch - submitted.

    AReaL, arXiv 2505.24298 (from memory).
    """
    return max((version + staleness + 1) * batch_size - submitted, 0)
