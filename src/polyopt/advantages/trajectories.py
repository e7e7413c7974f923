"""A batch seen rollout by rollout: what regressions, pairs and group losses are written in."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from polyopt.batch import Batch
from polyopt.groups import group_count, group_deviation, group_mean, group_size, group_sum

PerRollout = Float[Tensor, " R"]


def success(batch: Batch) -> Bool[Tensor, " N"]:
    """Whether each row's answer is right: `accuracy` >= 1 if the task has it, else reward > 0."""
    if "accuracy" in batch:
        return batch["accuracy"] >= 1
    return batch.rewards > 0


@dataclass(frozen=True)
class Trajectories:
    """The R rollouts that train: those with a trained token and a known reward.

    The others are in no sum, no mean and no count. A rollout's rows agree in everything but their
    tokens, so what isn't summed is read from any of them.

    Attributes:
        batch: The batch itself.
        slot: Rollout of each row, 0..R-1; R for rows that are left out. [N]
        row: One row of each rollout. [R]
        index: Group of each rollout, 0..G-1. [R]
    """

    batch: Batch
    slot: Int[Tensor, " N"]
    row: Int[Tensor, " R"]
    index: Int[Tensor, " R"]

    @classmethod
    def of(cls, batch: Batch) -> Trajectories:
        """The rollouts of a batch, in order of id."""
        ids, rollout = torch.unique(batch.rollout, return_inverse=True)
        tokens = batch.loss_mask.sum(1)
        trained = tokens.new_zeros(len(ids)).index_add(0, rollout, tokens) > 0
        known = batch.scored.new_ones(len(ids))
        known[rollout[~batch.scored]] = False
        kept = trained & known
        count = int(kept.sum())
        slot = torch.where(kept, kept.cumsum(0) - 1, count)[rollout]
        rows = torch.arange(len(batch), device=slot.device)
        row = slot.new_zeros(count + 1).index_put((slot,), rows)[:count]
        return cls(batch, slot, row, torch.unique(batch.group[row], return_inverse=True)[1])

    def __len__(self) -> int:
        return len(self.row)

    @property
    def groups(self) -> int:
        """Groups with at least one rollout that trains."""
        return group_size(self.index)

    def sum(self, values: Float[Tensor, "N T"]) -> PerRollout:
        """Sum over each rollout's trained tokens; differentiable."""
        rows = values.masked_fill(~self.batch.loss_mask, 0.0).sum(1)
        return rows.new_zeros(len(self) + 1).index_add(0, self.slot, rows)[: len(self)]

    def mean(self, values: Float[Tensor, "N T"]) -> PerRollout:
        """Mean over each rollout's trained tokens."""
        return self.sum(values) / self.tokens(values)

    def tokens(self, like: Tensor) -> PerRollout:
        """Trained tokens of each rollout."""
        return self.sum(torch.ones_like(like))

    def pick(self, column: Tensor) -> Tensor:
        """A column [N] with one entry per rollout."""
        return column[self.row]

    def spread(self, values: PerRollout) -> Float[Tensor, "N T"]:
        """A value per rollout, written to its trained tokens; 0 elsewhere."""
        padded = torch.cat([values, values.new_zeros(1)])
        return padded[self.slot][:, None] * self.batch.loss_mask.to(values.dtype)

    @property
    def credit(self) -> PerRollout:
        """Advantage of each rollout: the mean of its tokens'."""
        return self.mean(self.batch["advantages"])

    @property
    def right(self) -> Bool[Tensor, " R"]:
        """Whether each rollout's answer is right."""
        return self.pick(success(self.batch))

    def weight(self, like: Tensor) -> PerRollout:
        """Weight that selection gave each rollout (mean of its tokens'), or 1."""
        if "weights" in self.batch:
            return self.mean(self.batch["weights"])
        return torch.ones(len(self), dtype=like.dtype, device=like.device)

    def size(self, like: Tensor) -> PerRollout:
        """Rollouts in each rollout's group."""
        return group_count(self.index, torch.ones(len(self), dtype=like.dtype, device=like.device))

    def centred(self, values: PerRollout) -> PerRollout:
        """Values less their group's mean; differentiable everywhere."""
        return values - group_mean(values, self.index)

    def deviation(self, values: PerRollout) -> PerRollout:
        """The same for constants: exactly 0 where a group's values are all equal."""
        return group_deviation(values, self.index)

    def group_std(self, values: PerRollout, ddof: int = 1) -> PerRollout:
        """Standard deviation within each group; its gradient is 0 where it is 0."""
        freedom = (self.size(values) - ddof).clamp(min=1)
        variance = group_sum(self.centred(values).square(), self.index) / freedom
        positive = variance > 0
        return torch.where(positive, torch.where(positive, variance, 1.0).sqrt(), 0.0)
