"""Balance of right and wrong rollouts within a prompt: by weights, or by leaving some out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from polyopt.advantages.trajectories import Trajectories
from polyopt.batch import Batch
from polyopt.draws import uniforms
from polyopt.groups import group_mean, group_rank, group_sum
from polyopt.parts import part
from polyopt.rollout_table import RolloutTable


@part("selection.parts", min_rollouts=2)
def class_balance(batch: Batch) -> Batch:
    """weights *= k / (2 * rollouts of the same outcome): right and wrong have half a prompt each.

    k is the number of rollouts of the prompt that train; with one outcome only the weight is 1.

    PACS, arXiv 2509.02522.
    """
    rollouts = Trajectories.of(batch)
    right = rollouts.right.to(batch.rewards.dtype)
    size, wins = rollouts.size(right), group_sum(right, rollouts.index)
    same = torch.where(rollouts.right, wins, size - wins)
    weight = torch.where(same == size, torch.ones_like(right), size / (2 * same))
    whole = rollouts.spread(weight)
    return batch.replace(weights=batch["weights"] * whole if "weights" in batch else whole)


@part("selection.screens", min_rollouts=2)
@dataclass(frozen=True)
class DropSurplusFailures:
    """Leaves out rollouts below their prompt's mean reward, at random, until they are no majority.

    Where more rollouts are below the mean than at or above it, only as many of them stay; credit is
    then computed from what stayed. Which ones go follows from rollout ids alone (`draws`).

    RED-Drop, in "Group-Relative REINFORCE Is Secretly an Off-Policy Algorithm", arXiv 2509.24203.
    """

    def __call__(self, batch: Batch) -> Bool[Tensor, " N"]:
        """Rows to keep."""
        table = RolloutTable.of(batch)
        known = ~table.rewards.isnan()
        rewards, group = table.rewards[known], table.group[known]
        below = rewards < group_mean(rewards, group) - 1e-9
        lottery = table.column(uniforms(batch))[known][:, 0].to(torch.float64)
        place = group_rank(lottery + 2.0 * ~below, group)
        others = group_sum((~below).to(torch.float64), group)
        kept = torch.ones_like(known)
        kept[known] = ~below | (place < others)
        return table.rows(kept)
