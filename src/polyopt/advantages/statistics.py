"""Shared ingredients of the advantages: statistics over groups (`polyopt.groups`) and tokens."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from polyopt.groups import group_count as group_count
from polyopt.groups import group_deviation as group_deviation
from polyopt.groups import group_mean as group_mean
from polyopt.groups import group_std as group_std
from polyopt.groups import group_sum as group_sum


def masked_mean(values: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"]) -> Float[Tensor, ""]:
    """Mean over the tokens of a mask; 0 when it is empty."""
    count = mask.sum()
    return values.masked_fill(~mask, 0.0).sum() / count.clamp(min=1)


def whiten(
    values: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"], eps: float = 1e-8
) -> Float[Tensor, "N T"]:
    """(x - mean) / sqrt(var + eps) over all masked tokens, var with n - 1; 0 outside the mask.

    With fewer than two tokens there is no variance, and the result is 0.
    """
    count = mask.sum()
    if int(count) < 2:
        return torch.zeros_like(values)
    centred = (values - masked_mean(values, mask)).masked_fill(~mask, 0.0)
    variance = centred.square().sum() / (count - 1)
    return centred / (variance + eps).sqrt()


def spread(values: Float[Tensor, " N"], mask: Bool[Tensor, "N T"]) -> Float[Tensor, "N T"]:
    """A value per rollout, written to each of its masked tokens."""
    return values[:, None] * mask.to(values.dtype)


def suffix_sum(
    values: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"], discount: float = 1.0
) -> Float[Tensor, "N T"]:
    """S_t = x_t + discount * S_next over masked tokens only; 0 outside the mask.

    "Next" is the next masked token: the others neither discount nor contribute. A doubling scan:
    log2(T) vectorised rounds.
    """
    order = tokens_first(mask)
    packed = values.masked_fill(~mask, 0.0).gather(1, order)
    shift, factor = 1, discount
    while shift < packed.shape[1]:
        packed = packed + factor * pad(packed[:, shift:], (0, shift))
        shift, factor = 2 * shift, factor * factor
    return torch.zeros_like(values).scatter(1, order, packed).masked_fill(~mask, 0.0)


def tokens_first(mask: Bool[Tensor, "N T"]) -> Int[Tensor, "N T"]:
    """Column order that brings each row's masked tokens to its front, in order."""
    return torch.argsort((~mask).to(torch.int8), dim=1, stable=True)


def next_token(values: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"]) -> Float[Tensor, "N T"]:
    """At each masked token the value at the next masked one; 0 at the last and outside."""
    order = tokens_first(mask)
    packed = values.masked_fill(~mask, 0.0).gather(1, order)
    shifted = pad(packed[:, 1:], (0, 1))
    return torch.zeros_like(values).scatter(1, order, shifted).masked_fill(~mask, 0.0)
