"""How far the policy has moved since a prompt's previous visit."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from polyopt.batch import Batch
from polyopt.groups import group_sum
from polyopt.parts import part


def drift(
    then: Float[Tensor, "N T"], now: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"]
) -> Float[Tensor, " N"]:
    """Mean |logp_then - logp_now| over each row's tokens, in nats: SPO's distance of policies."""
    gap = (then - now).abs().masked_fill(~mask, 0.0)
    return gap.sum(1) / mask.sum(1).clamp(min=1)


@part(
    "rewards.shaping",
    needs={"revisit", "logp_sampler", "logp_old"},
    provides={"previous_drift"},
)
def previous_drift(batch: Batch) -> Batch:
    """Adds `previous_drift` [N]: the drift on the previous rollout of each row's prompt, else 0.

    That rollout is the row of its group that `revisit` marks; its `logp_sampler` is from then, its
    `logp_old` from now. Single-stream Policy Optimization, arXiv 2509.13232.
    """
    gap = drift(batch["logp_sampler"], batch["logp_old"], batch.mask)
    marked = torch.where(batch["revisit"], gap, torch.zeros_like(gap))
    return batch.replace(previous_drift=group_sum(marked, batch.group_index))
