"""Hinted rollouts: only where they are needed."""

from __future__ import annotations

from jaxtyping import Bool
from torch import Tensor

from polyopt.advantages.trajectories import success
from polyopt.batch import Batch
from polyopt.groups import group_max
from polyopt.parts import part


@part("selection.screens", needs={"guided"})
def hints_only_on_failure(batch: Batch) -> Bool[Tensor, " N"]:
    """Drops hinted rollouts (column `guided` [N] is 1) of prompts that a plain rollout solved.

    Guide, arXiv 2506.13923 (reconstructed from the abstract).
    """
    plain = batch["guided"] == 0
    solved = group_max((plain & success(batch)).to(batch.rewards.dtype), batch.group_index) > 0
    return plain | ~solved
