"""Screens by outcome: only the right rollouts, only the wrong ones, only unsolved prompts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from polyopt.batch import Batch
from polyopt.groups import group_min
from polyopt.parts import part
from polyopt.selection.screens import verdict


@part("selection.screens")
def only_right(batch: Batch) -> Bool[Tensor, " N"]:
    """Rollouts whose verdict is exactly 1. PSR, arXiv 2506.01347."""
    return verdict(batch) == 1


@part("selection.screens")
def only_wrong(batch: Batch) -> Bool[Tensor, " N"]:
    """Rollouts whose verdict is exactly 0. NSR, arXiv 2506.01347."""
    return verdict(batch) == 0


@part("selection.screens")
@dataclass(frozen=True)
class Unsolved:
    """Prompts that not all rollouts solve; others are sampled in place of the rest.

    Unscored rollouts don't count as failures. NGRPO, arXiv 2509.18851 (its script's filter).

    Attributes:
        solved_at: Verdict from which a rollout is a success.
        max_rounds: Most sampling rounds per step.
    """

    solved_at: float = 1.0
    max_rounds: int = 10

    def __call__(self, batch: Batch) -> Bool[Tensor, " N"]:
        """Rows to keep."""
        worst = verdict(batch).nan_to_num(torch.inf)
        return group_min(worst, batch.group_index) < self.solved_at
