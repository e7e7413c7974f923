"""Soft means: tau log mean exp(x / tau), between the mean (tau = inf) and the maximum (tau = 0).

The value of the best policy within reach of a reference (A*-PO), the baseline of mirror descent
(OPMD) and the hardest of the wrong answers (DisCO) are all of this form.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from polyopt.groups import group_max, group_sum


def soft_mean(values: Float[Tensor, "N K"], temperature: float) -> Float[Tensor, " N"]:
    """temperature * log mean_k exp(x_k / temperature), over known values (NaN is unknown).

    A row without any known value gives 0. `temperature=inf` is the mean.

    Raises:
        ValueError: A temperature that isn't above 0.
    """
    known = ~values.isnan()
    rows = torch.arange(len(values), device=values.device)[:, None].expand_as(values)
    filled = values.masked_fill(~known, 0.0).flatten()
    means = group_soft_mean(filled, rows.flatten(), temperature, known.flatten())
    return means.reshape(values.shape)[:, 0] if values.numel() else values.new_zeros(len(values))


def group_soft_mean(
    values: Float[Tensor, " N"],
    index: Int[Tensor, " N"],
    temperature: float,
    members: Bool[Tensor, " N"] | None = None,
) -> Float[Tensor, " N"]:
    """Soft mean over the members of each entry's group, given to every entry; differentiable.

    Groups without members give 0. `temperature=inf` is the mean of the members.

    Raises:
        ValueError: A temperature that isn't above 0.
    """
    if not temperature > 0:
        raise ValueError(f"the temperature of a soft mean must be above 0, not {temperature}")
    counted = torch.ones_like(values) if members is None else members.to(values.dtype)
    count = group_sum(counted, index)
    if math.isinf(temperature):
        return group_sum(values * counted, index) / count.clamp(min=1)
    top = group_max(values.detach().masked_fill(counted == 0, -torch.inf), index)
    top = torch.where(count > 0, top, 0.0)
    inside = torch.where(counted > 0, (values - top) / temperature, 0.0)
    total = group_sum(inside.exp() * counted, index)
    share = torch.where(count > 0, total / count.clamp(min=1), 1.0)
    return top + temperature * share.log()


def group_log_softmax(values: Float[Tensor, " N"], index: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
    """Log of exp(x_i) / sum over the group of exp(x_j)."""
    shifted = values - group_max(values.detach(), index)
    return shifted - group_sum(shifted.exp(), index).log()
