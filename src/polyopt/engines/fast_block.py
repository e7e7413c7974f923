"""The parts of a Llama-like block that prefill and decoding steps share."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from polyopt.engines.fast_weights import Geometry, LayerWeights


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


def rotations(table: Complex[Tensor, "R D/2"], geometry: Geometry) -> Complex[Tensor, "R H+K D/2"]:
    """One rotation per head; those of queries carry the scale of the scores."""
    heads = torch.ones(geometry.query_heads + geometry.key_heads, 1, device=table.device)
    heads[: geometry.query_heads] = geometry.scaling
    return table[:, None] * heads


def queries_keys_values(
    block: LayerWeights,
    geometry: Geometry,
    hidden: Float[Tensor, "R I"],
    rotation: Complex[Tensor, "R H+K D/2"],
) -> tuple[Float[Tensor, "R H D"], Float[Tensor, "R K D"], Float[Tensor, "R K D"]]:
    """Rotated and scaled queries, rotated keys, and values of the rows' new tokens."""
    normed = F.rms_norm(hidden, hidden.shape[-1:], block.input_norm, geometry.norm_eps)
    heads = block.qkv(normed).view(len(hidden), -1, geometry.head_dim)
    turning = geometry.query_heads + geometry.key_heads
    turned = heads[:, :turning]
    if block.head_norm is not None:
        turned = F.rms_norm(turned, turned.shape[-1:], None, geometry.norm_eps) * block.head_norm
    pairs = turned.float().reshape(*turned.shape[:-1], -1, 2)
    turned = torch.view_as_complex(pairs) * rotation
    turned = torch.view_as_real(turned).flatten(-2).to(hidden.dtype)
    return turned[:, : geometry.query_heads], turned[:, geometry.query_heads :], heads[:, turning:]


def feed_forward(
    block: LayerWeights, geometry: Geometry, hidden: Float[Tensor, "R I"]
) -> Float[Tensor, "R I"]:
    """The gated MLP on the normed hidden state."""
    normed = F.rms_norm(hidden, hidden.shape[-1:], block.mlp_norm, geometry.norm_eps)
    return block.down(F.silu(block.gate(normed)).mul_(block.up(normed)))
