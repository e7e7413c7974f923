"""An importance ratio for each item of a list."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from polyopt.batch import Batch
from polyopt.objectives.protocol import Tokens
from polyopt.objectives.ratios import log_ratio
from polyopt.parts import part


@part("objective.ratio", needs={"logp_old", "items"})
@dataclass(frozen=True)
class ItemRatio:
    """Every token the geometric mean of its item's ratios: log rho_k = mean_{t in k} (logp - old).

    `items` [N, T] is the item of each token, from 0; those beyond the K-th share one ratio, and
    tokens of no item (-1) that of the first. The gradient goes through all tokens of the item.
    Rank-GRPO, "Training LLM-based Conversational Recommender Systems with Reinforcement Learning",
    arXiv 2510.20150.

    Attributes:
        ranks: K, the length of a list.
    """

    ranks: int = 20

    def __call__(self, logp: Tokens, batch: Batch) -> Tokens:
        """Log-ratios [N, T]."""
        rollout = torch.unique(batch.rollout, return_inverse=True)[1]
        bins = rollout[:, None] * (self.ranks + 1) + batch["items"].long().clamp(0, self.ranks)
        values, trained = log_ratio(logp, batch), batch.loss_mask.to(logp.dtype)
        empty = logp.new_zeros((len(batch) + 1) * (self.ranks + 1))
        total = empty.index_add(0, bins.flatten(), values.flatten())
        count = empty.index_add(0, bins.flatten(), trained.flatten())
        return (total / count.clamp(min=1))[bins]
