"""The parts of a Llama-like block that prefill and decoding steps share."""

from __future__ import annotations

import torch
from jaxtyping import Complex, Float
from torch import Tensor
from torch.nn import functional as F

from polyopt.engines.fast_weights import LayerWeights
from polyopt.models.llama_like import Geometry


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
