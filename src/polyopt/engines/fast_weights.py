"""The weights of Llama-like models as the fast decoders want them.

Q, K and V are one projection. The two halves that rotary embeddings turn
against each other are interleaved in the rows of Q and K, so a rotation is one complex product;
scores don't change, as queries and keys are permuted alike.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from polyopt.engines.fast_projection import Projection
from polyopt.models.llama_like import Geometry, geometry_of, head_of, is_lora, linears

Project = Callable[[Tensor, Tensor | None], Projection]
"""Makes the projection of a weight and a bias."""


@dataclass(frozen=True)
class LayerWeights:
    """One block."""

    input_norm: Tensor
    qkv: Projection
    head_norm: Float[Tensor, "H+K D"] | None
    out: Projection
    mlp_norm: Tensor
    gate: Projection
    up: Projection
    down: Projection


@dataclass(frozen=True)
class Weights:
    """The whole model."""

    embedding: Float[Tensor, "V I"]
    layers: list[LayerWeights]
    norm: Tensor
    head: Projection


def fingerprint(model: PreTrainedModel) -> Hashable:
    """Changes whenever a weight is written in place or replaced, or an adapter is switched."""
    weights = tuple((p.data_ptr(), p._version) for p in model.parameters())
    adapters = tuple(
        (tuple(m.active_adapters), m.disable_adapters, m.merged, tuple(m.scaling.items()))
        for m in linears(model)
        if is_lora(m)
    )
    return weights, adapters


def read_weights(model: PreTrainedModel, project: Project) -> Weights:
    """Copy the model's weights as they are now, with LoRA adapters added in."""
    geometry = geometry_of(model)
    inner: Any = model.model
    return Weights(
        embedding=inner.embed_tokens.weight.detach(),
        layers=[_layer(block, geometry, project) for block in inner.layers],
        norm=inner.norm.weight.detach(),
        head=project(*_affine(head_of(model))),
    )


def _layer(block: Any, geometry: Geometry, project: Project) -> LayerWeights:
    attention, mlp = block.self_attn, block.mlp
    heads = (geometry.query_heads, geometry.key_heads)
    parts = [_affine(m) for m in (attention.q_proj, attention.k_proj, attention.v_proj)]
    qkv = [
        (_interleave(weight, count), None if bias is None else _interleave(bias, count))
        for (weight, bias), count in zip(parts, heads, strict=False)
    ]
    head_norm = None
    if hasattr(attention, "q_norm"):
        norms = [_interleave(n.weight.detach(), 1) for n in (attention.q_norm, attention.k_norm)]
        head_norm = torch.cat([n.expand(c, -1) for n, c in zip(norms, heads, strict=True)])
    return LayerWeights(
        input_norm=block.input_layernorm.weight.detach(),
        qkv=project(*_joined([*qkv, parts[2]])),
        head_norm=head_norm,
        out=project(*_affine(attention.o_proj)),
        mlp_norm=block.post_attention_layernorm.weight.detach(),
        gate=project(*_affine(mlp.gate_proj)),
        up=project(*_affine(mlp.up_proj)),
        down=project(*_affine(mlp.down_proj)),
    )


def _joined(parts: list[tuple[Tensor, Tensor | None]]) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of one affine map that computes several at once."""
    weights = torch.cat([weight for weight, _ in parts])
    if all(bias is None for _, bias in parts):
        return weights, None
    biases = [w.new_zeros(len(w)) if bias is None else bias for w, bias in parts]
    return weights, torch.cat(biases)


def _interleave(rows: Tensor, heads: int) -> Tensor:
    """Rows of each head reordered so that rotation partners i and i + D/2 are neighbours."""
    shape = rows.shape
    return rows.reshape(heads, 2, -1, *shape[1:]).transpose(1, 2).reshape(shape)


def _affine(module: Any) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of a linear layer, active LoRA adapters added."""
    if not is_lora(module):
        return module.weight.detach(), None if module.bias is None else module.bias.detach()
    weight, bias = _affine(module.get_base_layer())
    if not (module.merged or module.disable_adapters):
        for adapter in module.active_adapters:
            if adapter in module.lora_A:
                weight = weight + module.get_delta_weight(adapter).detach()
    return weight, bias
