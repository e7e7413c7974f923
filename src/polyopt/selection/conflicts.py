"""Tokens on which good and bad completions agree: they are no reason for either outcome."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from polyopt.advantages.scopes import pair_index
from polyopt.batch import Batch
from polyopt.groups import group_deviation, group_size
from polyopt.parts import part
from polyopt.rollout_table import RolloutTable


@dataclass(frozen=True)
class ConflictRuns:
    """Where completions above and below their group's mean reward begin and end alike.

    A token conflicts if it stands at the same offset in a completion above the mean and in one
    below it. Only the unbroken run of conflicts from the start counts, and the one from the end
    (offsets counted from the last sampled token).

    Attributes:
        sign: 1 above the group's mean reward, -1 below, 0 at it. [N]
        forward: The run from the start. [N, T]
        backward: The run from the end. [N, T]
    """

    sign: Int[Tensor, " N"]
    forward: Bool[Tensor, "N T"]
    backward: Bool[Tensor, "N T"]

    @classmethod
    def of(cls, batch: Batch) -> ConflictRuns:
        """The runs of a batch."""
        table, mask = RolloutTable.of(batch), batch.mask
        sign = table.rows(group_deviation(table.rewards, table.group)).sign().long()
        offset = (mask.long().cumsum(1) - 1).masked_fill(~mask, 0)
        last = mask.long().sum(1, keepdim=True) - 1
        from_end = (last - offset).masked_fill(~mask, 0)
        found = [_run(batch, sign, place) for place in (offset, from_end)]
        return cls(sign, found[0], found[1])

    @property
    def longest(self) -> Float[Tensor, " N"]:
        """Tokens of the longer of the two runs of each row."""
        return torch.maximum(self.forward.sum(1), self.backward.sum(1)).double()


def _run(batch: Batch, sign: Int[Tensor, " N"], offset: Int[Tensor, "N T"]) -> Bool[Tensor, "N T"]:
    """Conflicts at every offset up to a token's own, in the rows that have a sign."""
    mask = batch.mask
    rows = torch.arange(len(mask), device=mask.device)[:, None].expand(mask.shape)[mask]
    spot = batch.group_index[rows] * mask.shape[1] + offset[mask]
    place = pair_index(spot, batch["tokens"][mask])
    above, below = (_any(sign[rows] == side, place) for side in (1, -1))
    conflict = torch.zeros_like(mask).masked_scatter(mask, above & below & (sign[rows] != 0))
    ordered = torch.zeros_like(offset).scatter_reduce(1, offset, conflict.long(), "amax")
    return ordered.cummin(1).values.bool().gather(1, offset) & mask


def _any(hit: Bool[Tensor, " K"], index: Int[Tensor, " K"]) -> Bool[Tensor, " K"]:
    """Whether any member of each entry's class is hit."""
    counts = torch.bincount(index[hit], minlength=group_size(index))
    return counts[index] > 0


@part("selection.parts", needs={"tokens"}, min_rollouts=2)
@dataclass(frozen=True)
class ConflictWeights:
    """Weight of conflicting tokens: `positive` in completions above the mean, `negative` below.

    So what good and bad completions have in common isn't unlearned. A token in both runs is
    weighted twice; everything else keeps its weight. GTPO (group-relative trajectory-based policy
    optimization), arXiv 2508.03772.

    Attributes:
        positive: Factor above the group's mean reward.
        negative: Factor below it.
    """

    positive: float = 2.0
    negative: float = 0.0

    def __call__(self, batch: Batch) -> Batch:
        """The batch with other `weights`."""
        weights = self.token_weights(ConflictRuns.of(batch)).to(batch.rewards.dtype)
        before = batch.columns.get("weights")
        return batch.replace(weights=weights if before is None else before * weights)

    def token_weights(self, runs: ConflictRuns) -> Float[Tensor, "N T"]:
        """Product of the factors of both runs."""
        factor = torch.where(runs.sign > 0, self.positive, self.negative)[:, None].double()
        both = [torch.where(run, factor, 1.0) for run in (runs.forward, runs.backward)]
        return both[0] * both[1]
