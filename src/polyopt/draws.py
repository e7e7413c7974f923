"""Uniform draws at tokens that follow from ids alone, for parts that choose tokens at random.

A loss has no random stream: it must give the same number for the same batch, however the batch is
ordered, padded or cut. So a draw is a hash of (rollout id, position). Rollout ids are unique in a
run, so every rollout is drawn anew.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from polyopt.batch import Batch


def uniforms(batch: Batch) -> Float[Tensor, "N T"]:
    """A number in [0, 1) for each token: the batch's own column `draws`, or else the hash."""
    if "draws" in batch:
        return batch["draws"]
    position = torch.arange(batch.width, device=batch.mask.device)
    bits = _mixed(_mixed(batch.rollout.long())[:, None] + position)
    return ((bits >> 11) & ((1 << 53) - 1)).double() / (1 << 53)


def _mixed(x: Int[Tensor, "*B"]) -> Int[Tensor, "*B"]:
    """The finaliser of SplitMix64 on 64-bit integers (which wrap around)."""
    x = x + _signed(0x9E3779B97F4A7C15)
    x = (x ^ _shifted(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shifted(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shifted(x, 31)


def _shifted(x: Int[Tensor, "*B"], by: int) -> Int[Tensor, "*B"]:
    """Logical shift to the right."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def _signed(x: int) -> int:
    """A 64-bit pattern as the signed integer that torch holds it in."""
    return x - (1 << 64) if x >= 1 << 63 else x
