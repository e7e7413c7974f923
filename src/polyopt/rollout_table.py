"""`RolloutTable`: a batch's rollouts, one entry each, however many rows they have."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from polyopt.batch import Batch
from polyopt.groups import group_count


@dataclass(frozen=True)
class RolloutTable:
    """The R rollouts of a batch in order of their ids.

    Statistics over rollouts are computed here and written back to rows, so a rollout of several
    rows counts once.

    Attributes:
        rewards: Reward of each rollout. [R]
        group: Group of each rollout, counted from 0. [R]
        of_row: Rollout of each row. [N]
        first_row: First row of each rollout. [R]
        mask: The batch's mask. [N, T]
    """

    rewards: Float[Tensor, " R"]
    group: Int[Tensor, " R"]
    of_row: Int[Tensor, " N"]
    first_row: Int[Tensor, " R"]
    mask: Bool[Tensor, "N T"]

    @classmethod
    def of(cls, batch: Batch) -> RolloutTable:
        """The rollouts of a batch."""
        ids, of_row = torch.unique(batch.rollout, return_inverse=True)
        rows = torch.arange(len(batch), device=of_row.device)
        first = torch.full_like(ids, len(batch)).scatter_reduce(0, of_row, rows, "amin")
        return cls(batch.rewards[first], batch.group_index[first], of_row, first, batch.mask)

    @property
    def alone(self) -> Bool[Tensor, " R"]:
        """Rollouts that are the only one of their group."""
        return group_count(self.group, self.rewards) == 1

    @property
    def lengths(self) -> Float[Tensor, " R"]:
        """Sampled tokens of each rollout."""
        return self.token_sum(torch.ones_like(self.mask, dtype=self.rewards.dtype))

    def column(self, values: Tensor) -> Tensor:
        """A column of the batch, [N, ...], at each rollout's first row. [R, ...]"""
        return values[self.first_row]

    def token_sum(self, values: Float[Tensor, "N T"]) -> Float[Tensor, " R"]:
        """Sum over each rollout's sampled tokens."""
        rows = values.masked_fill(~self.mask, 0.0).sum(1)
        return rows.new_zeros(len(self.first_row)).index_add(0, self.of_row, rows)

    def token_mean(self, values: Float[Tensor, "N T"]) -> Float[Tensor, " R"]:
        """Mean over each rollout's sampled tokens; 0 where it has none."""
        return self.token_sum(values) / self.lengths.clamp(min=1)

    def rows(self, values: Tensor) -> Tensor:
        """A value per rollout, given to each of its rows."""
        return values[self.of_row]

    def spread(self, values: Float[Tensor, " R"]) -> Float[Tensor, "N T"]:
        """A value per rollout, written to each of its sampled tokens."""
        return self.rows(values)[:, None] * self.mask.to(values.dtype)
