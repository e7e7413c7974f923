"""Rotary position embeddings as a table of rotations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Complex, Int
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class RotaryTable:
    """Rotations of all positions so far needed, as complex numbers [P, D/2]."""

    def __init__(self, model: PreTrainedModel) -> None:
        inner: Any = model.model
        self._rotary = inner.rotary_emb
        self._device = model.device
        self._table = self._compute(1024)

    def _compute(self, positions: int) -> Complex[Tensor, "P D/2"]:
        index = torch.arange(positions, device=self._device)[None]
        like = torch.empty(0, dtype=torch.float32, device=self._device)
        cos, sin = (part[0].chunk(2, dim=-1)[0] for part in self._rotary(like, index))
        return torch.complex(cos, sin)

    def at(self, positions: Int[Tensor, " R"], last: int) -> Complex[Tensor, "R D/2"]:
        """Rotations at these positions, none of which passes `last`."""
        return self.upto(last).index_select(0, positions)

    def upto(self, last: int) -> Complex[Tensor, "P D/2"]:
        """Rotations at positions 0 to `last` at least."""
        if last >= len(self._table):
            self._table = self._compute(2 * last)
        return self._table
