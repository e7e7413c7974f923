"""From values of tokens to values of rollouts: sum, mean or maximum over the trained tokens.

A rollout may be several rows (its context was rewritten between turns); all of them get its value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from polyopt.batch import Batch

Tokens = Float[Tensor, "N T"]
Rows = Float[Tensor, " N"]


def rollout_index(batch: Batch) -> Int[Tensor, " N"]:
    """Rollouts renumbered 0..R-1 in order of id, for scatter operations."""
    index: Tensor = torch.unique(batch.rollout, return_inverse=True)[1]
    return index


def rollout_rows(batch: Batch, like: Tensor) -> Rows:
    """How many rows each row's rollout has, in the dtype of `like`."""
    index = rollout_index(batch)
    ones = like.new_ones(len(batch))
    return like.new_zeros(len(batch)).index_add(0, index, ones)[index]


def rollout_sum(values: Tokens, batch: Batch) -> Rows:
    """Sum over the trained tokens of each row's rollout, given back to each of its rows."""
    index = rollout_index(batch)
    rows = values.masked_fill(~batch.loss_mask, 0.0).sum(1)
    return rows.new_zeros(len(rows)).index_add(0, index, rows)[index]


def rollout_tokens(batch: Batch, like: Tensor) -> Rows:
    """Trained tokens of each row's rollout, at least 1, in the dtype of `like`."""
    return rollout_sum(batch.loss_mask.to(like.dtype), batch).clamp(min=1)


def rollout_mean(values: Tokens, batch: Batch) -> Rows:
    """Mean over the trained tokens of each row's rollout; 0 for a rollout without any."""
    return rollout_sum(values, batch) / rollout_tokens(batch, values)


def rollout_max(values: Tokens, batch: Batch) -> Rows:
    """Largest value among the trained tokens of each row's rollout; 0 for one without any."""
    index = rollout_index(batch)
    low = torch.full_like(values, -torch.inf)
    rows = torch.where(batch.loss_mask, values, low).amax(1)
    best = rows.new_full((len(rows),), -torch.inf).scatter_reduce(0, index, rows, "amax")[index]
    return torch.where(best.isinf(), torch.zeros_like(best), best)


class Level(Protocol):
    """Which tokens share one value."""

    def __call__(self, values: Tokens, batch: Batch) -> Tokens:
        """The shared value at each token, [N, T]."""


@dataclass(frozen=True)
class EachToken:
    """Every token its own value."""

    def __call__(self, values: Tokens, batch: Batch) -> Tokens:
        """Values [N, T] as they are."""
        return values


@dataclass(frozen=True)
class RolloutSum:
    """Every token the sum over its rollout."""

    def __call__(self, values: Tokens, batch: Batch) -> Tokens:
        """Shared values [N, T]."""
        return rollout_sum(values, batch)[:, None].expand_as(values)


@dataclass(frozen=True)
class RolloutMean:
    """Every token the mean over its rollout."""

    def __call__(self, values: Tokens, batch: Batch) -> Tokens:
        """Shared values [N, T]."""
        return rollout_mean(values, batch)[:, None].expand_as(values)


@dataclass(frozen=True)
class RolloutMax:
    """Every token the largest value of its rollout."""

    def __call__(self, values: Tokens, batch: Batch) -> Tokens:
        """Shared values [N, T]."""
        return rollout_max(values, batch)[:, None].expand_as(values)
