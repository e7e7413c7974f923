"""Policies on disk, in Hugging Face format."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from torch import nn

from polyopt.models.quiet import no_progress_bars

VALUE_HEAD_FILE = "value_head.safetensors"


def save_policy(
    folder: Path, model: Any, tokenizer: Any, *, value_head: nn.Module | None, merged: bool
) -> None:
    """Write model, tokenizer and value head; see `Policy.save`."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    lora = hasattr(model, "peft_config")
    with no_progress_bars():
        if lora:
            model.save_pretrained(str(folder / "adapter"))
        if merged or not lora:
            whole = _merged(model) if lora else model
            whole.save_pretrained(str(folder))
            tokenizer.save_pretrained(str(folder))
    if value_head is not None:
        weights = {k: v.cpu().contiguous() for k, v in value_head.state_dict().items()}
        save_file(weights, str(folder / VALUE_HEAD_FILE))


def _merged(model: Any) -> Any:
    """A copy of a peft model as a plain model with the adapter merged in, in float32 sums."""
    stored = {p.dtype for p in model.parameters() if not p.requires_grad}
    whole = copy.deepcopy(model).to("cpu").float().merge_and_unload()
    return whole.to(stored.pop()) if len(stored) == 1 else whole
