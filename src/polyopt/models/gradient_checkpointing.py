"""Activation checkpointing: layers run again on the way back instead of keeping activations."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from polyopt.models.shared_prefix import attention_of


def enable_checkpointing(model: Any) -> None:
    """Switch activation checkpointing on, and off the dropout that its layers apply themselves."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    name = "activation_checkpointing_enable"  # gradient_checkpointing_enable before 5.x
    enable = getattr(base, name, None) or base.gradient_checkpointing_enable
    enable({"use_reentrant": False, "context_fn": checkpoint_contexts(base.config)})
    for module in model.modules():
        if getattr(module, "gradient_checkpointing", False):
            for name, value in list(vars(module).items()):
                if "dropout" in name and isinstance(value, float):
                    setattr(module, name, 0.0)


def checkpoint_contexts(config: Any) -> Any:
    """Contexts for activation checkpointing: layers recompute with the attention they ran with."""

    def contexts() -> tuple[Any, Any]:
        now = config._attn_implementation
        return nullcontext(), attention_of(config, now)

    return contexts
