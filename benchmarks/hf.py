"""What Hugging Face's transformers does by itself: sampling, and forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

PAGE = 32
"""Tokens of a page of the continuous-batching cache."""
SAMPLING = {"do_sample": True, "top_k": 0, "top_p": 1.0, "temperature": 1.0, "pad_token_id": 0}
"""Draws from the model's whole distribution."""


def never_stop(model: Any) -> None:
    """Make `generate` end at its length only, as the engine does without stop ids."""
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0


def generate_call(model: Any, prompts: Sequence[Sequence[int]], tokens: int) -> Callable[[], Any]:
    """`generate` of exactly `tokens` tokens for left-padded prompts."""
    width = max(map(len, prompts))
    rows = [[0] * (width - len(p)) + list(p) for p in prompts]
    mask = [[0] * (width - len(p)) + [1] * len(p) for p in prompts]
    ids, attended = (torch.tensor(x, device=model.device) for x in (rows, mask))

    def call() -> Any:
        found = model.generate(
            input_ids=ids, attention_mask=attended, max_new_tokens=tokens, **SAMPLING
        )
        if found.shape[1] != width + tokens:
            raise RuntimeError(f"generate gave {found.shape[1] - width} tokens, not {tokens}")
        return found

    return call


def continuous_call(model: Any, prompts: Sequence[Sequence[int]], tokens: int) -> Callable[[], Any]:
    """`generate_batch` of exactly `tokens` tokens; its manager outlives the calls.

    By default its cache takes most of the machine's free memory, so it is given just the pages that
    the work needs. It is tried once here.
    """
    import logging

    from transformers import ContinuousBatchingConfig, GenerationConfig

    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.ERROR)
    pages = sum(-(-(len(p) + tokens + 1) // PAGE) + 1 for p in prompts)
    sizes = ContinuousBatchingConfig(
        page_size=PAGE,
        num_blocks=max(pages, 8),
        max_batch_tokens=max(256, len(prompts)),
    )
    sampling = GenerationConfig(max_new_tokens=tokens, eos_token_id=-1, **SAMPLING)

    def call() -> Any:
        found = model.generate_batch(
            inputs=[list(p) for p in prompts],
            generation_config=sampling,
            continuous_batching_config=sizes,
            persistent_manager=True,
            warmup=False,
        )
        counts = [len(output.generated_tokens) for output in found.values()]
        if counts != [tokens] * len(prompts):
            raise RuntimeError(f"generate_batch gave {sum(counts)} tokens in {len(counts)} rows")
        return found

    call()
    return call


def end_continuous(model: Any) -> None:
    """Stop the manager that `generate_batch` left running, if there is one."""
    if getattr(model, "_cached_continuous_batching_manager", None) is not None:
        model.destroy_cached_continuous_batching_manager()


def padded_rows(
    prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]
) -> tuple[Tensor, Tensor, Tensor]:
    """Right-padded ids, attention mask, and labels that are -100 but on completions."""
    rows = [[*p, *c] for p, c in zip(prompts, completions, strict=True)]
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    labels = ids.masked_fill(mask == 0, -100)
    for i, prompt in enumerate(prompts):
        labels[i, : len(prompt)] = -100
    return ids, mask, labels


def loss_call(
    model: Any,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    micro_rows: int,
    autocast: Callable[[], Any],
) -> Callable[[], Any]:
    """Forward and backward of the model's own cross-entropy, in micro-batches of rows."""
    parts = [
        [x.to(model.device) for x in padded_rows(prompts[i:j], completions[i:j])]
        for i in range(0, len(prompts), micro_rows)
        for j in [i + micro_rows]
    ]

    def call() -> None:
        model.zero_grad(set_to_none=True)
        for ids, mask, labels in parts:
            with autocast():
                loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
            (loss / len(parts)).backward()

    return call
