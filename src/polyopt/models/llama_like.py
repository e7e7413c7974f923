"""Which models are built like Llama, and their sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from polyopt.native.library import native

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
STATIC_ROTARY = frozenset({"default", "linear", "llama3", "yarn"})


@dataclass(frozen=True)
class Geometry:
    """Sizes of the model: H query heads and K key-value heads of D dimensions."""

    layers: int
    query_heads: int
    key_heads: int
    head_dim: int
    norm_eps: float
    scaling: float


def why_unsupported(model: PreTrainedModel) -> str | None:
    """What keeps the model from the fast decoder, or None."""
    config = model.config
    if config.model_type not in FAMILIES:
        return f"model type {config.model_type}"
    rotary = getattr(config, "rope_parameters", None) or {}
    if rotary.get("rope_type") not in STATIC_ROTARY or rotary.get("partial_rotary_factor", 1) != 1:
        return f"rotary embedding {rotary}"
    if config.hidden_act not in ("silu", "swish"):
        return f"activation {config.hidden_act}"
    if _slides(model):
        return "sliding-window attention"
    for module in linears(model):
        if reason := _why_opaque(module):
            return reason
    return None


def why_not_native(model: PreTrainedModel) -> str | None:
    """What keeps the model from the C kernels, or None."""
    if native() is None:
        return "a machine without a C compiler"
    if model.device.type != "cpu":
        return f"a model on {model.device.type}"
    if kinds := {p.dtype for p in model.parameters()} - {torch.float32}:
        return f"weights of type {', '.join(sorted(map(str, kinds)))}"
    return why_unsupported(model)


def _slides(model: PreTrainedModel) -> bool:
    """Whether some layer's window is shorter than the longest sequence."""
    config: Any = model.config
    inner: Any = model.model
    windows = [getattr(block.self_attn, "sliding_window", None) for block in inner.layers]
    if config.model_type == "mistral":
        windows.append(getattr(config, "sliding_window", None))
    return any(window and window < config.max_position_embeddings for window in windows)


def geometry_of(model: PreTrainedModel) -> Geometry:
    """The model's sizes."""
    config = model.config
    attention: Any = model.model.layers[0].self_attn
    return Geometry(
        layers=config.num_hidden_layers,
        query_heads=config.num_attention_heads,
        key_heads=config.num_key_value_heads,
        head_dim=attention.head_dim,
        norm_eps=config.rms_norm_eps,
        scaling=attention.scaling,
    )


def linears(model: PreTrainedModel) -> list[Any]:
    """All modules that are read as affine maps."""
    inner: Any = model.model
    found = [head_of(model)]
    for block in inner.layers:
        attention, mlp = block.self_attn, block.mlp
        found += [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj]
        found += [mlp.gate_proj, mlp.up_proj, mlp.down_proj]
    return found


def head_of(model: Any) -> Any:
    """The map from hidden states to logits."""
    return model.get_output_embeddings()


def is_lora(module: Any) -> bool:
    """Whether a linear layer carries LoRA adapters."""
    return hasattr(module, "lora_A") and hasattr(module, "get_delta_weight")


def _why_opaque(module: Any) -> str | None:
    """Why the module's weight can't be read, or None."""
    if is_lora(module):
        variants = getattr(module, "lora_variant", {}) or any(
            getattr(module, "use_dora", {}).values()
        )
        if variants or any(getattr(module, "lora_bias", {}).values()):
            return "a LoRA variant"
        module = module.get_base_layer()
    return None if type(module) is nn.Linear else f"a layer of type {type(module).__name__}"
