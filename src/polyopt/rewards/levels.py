"""Rules that turn what is known of an answer into an order of preference."""

from __future__ import annotations

import torch
from jaxtyping import Bool
from torch import Tensor

from polyopt.batch import Batch
from polyopt.parts import part


@part("rewards.shaping", provides={"level"})
def preference_levels(batch: Batch) -> Batch:
    """Adds `level` [N]: 1 right; 2 wrong; 3 no answer could be read; 4 wrong format.

    Right is an accuracy of 1, or a reward above 0 where the task has no accuracy. Optional columns
    [N] say the rest, 0 for no: `reward/answer` (whether an answer could be read) and
    `reward/format`; without them every answer counts as readable and well formed. Rewards stay as
    they are.

    TRPA, "Trust Region Preference Approximation".
    """
    right = batch["accuracy"] >= 1 if "accuracy" in batch else batch.rewards > 0
    well_formed = _granted(batch, "reward/format")
    readable = _granted(batch, "reward/answer")
    wrong = torch.where(readable, torch.where(right, 1, 2), 3)
    return batch.replace(level=torch.where(well_formed, wrong, 4))


def _granted(batch: Batch, name: str) -> Bool[Tensor, " N"]:
    """Whether a reward term is above 0; everywhere true where there is no such term."""
    if name not in batch:
        return torch.ones_like(batch.group, dtype=torch.bool)
    return batch[name] > 0
