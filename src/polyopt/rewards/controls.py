"""Control rollouts are judged among themselves."""

from __future__ import annotations

import torch

from polyopt.batch import Batch
from polyopt.parts import part


@part("rewards.shaping", needs={"control"})
def controls_apart(batch: Batch) -> Batch:
    """Controls of a prompt (`control` > 0) become a group of their own, with id -1 - group.

    AEPO, arXiv 2510.08141: their advantages are computed among themselves.
    """
    group = torch.where(batch["control"] > 0, -1 - batch.group, batch.group)
    return batch.replace(group=group)
