"""Credit for when tools are called."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from polyopt.advantages.trajectories import success
from polyopt.batch import Batch
from polyopt.groups import group_mean, subgroups
from polyopt.parts import part
from polyopt.rollout_table import RolloutTable


@part("advantages.shaping", needs={"first_call", "lengths"})
@dataclass(frozen=True)
class EarlyCall:
    """A_i += clip(delta (p_i - mean p) / mean L, -k |A_i|, k |A_i|) for right rollouts with a call.

    p_i is where the first tool call begins, L_i the completion's length in tokens; the means are
    over the right rollouts of the group that call a tool at all, and only those are changed. With
    delta < 0 an earlier call than the others' earns more. Shaping the advantage leaves the reward
    alone, so k < 1 never turns a sign, and where A_i = 0 nothing is added.

    Column `first_call` [N]: place of the first call's first token, -1 for none. ASPO for tool use
    ("Understanding Tool-Integrated Reasoning"), arXiv 2508.19201, eq. 2.

    Attributes:
        delta: Slope (conservative setting -2, aggressive -2.5).
        k: Bound as a share of |A_i| (conservative setting 0.7, aggressive 0.9).
    """

    delta: float = -2.0
    k: float = 0.7

    def __call__(self, advantages: Float[Tensor, "N T"], batch: Batch) -> Float[Tensor, "N T"]:
        """Advantages [N, T]."""
        return advantages + self.bias(advantages, batch)

    def bias(self, advantages: Float[Tensor, "N T"], batch: Batch) -> Float[Tensor, "N T"]:
        """What is added."""
        table = RolloutTable.of(batch)
        first = table.column(batch["first_call"]).to(advantages.dtype)
        length = table.column(batch["lengths"]).to(advantages.dtype)
        chosen = table.column(success(batch)) & (first >= 0)
        peers = subgroups(chosen, table.group)
        lead = first - group_mean(first, peers)
        shift = self.delta * lead / group_mean(length, peers).clamp(min=1)
        spread = table.rows(torch.where(chosen, shift, 0.0))[:, None]
        bound = self.k * advantages.abs()
        return torch.minimum(torch.maximum(spread, -bound), bound)
