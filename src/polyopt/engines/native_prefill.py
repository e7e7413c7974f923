"""Prefill of prompts by the written-out model, whose activations a recorder may want."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from polyopt.engines.decoder import KeyValue, Prefill, Segment
from polyopt.engines.fast_prefill import chunks
from polyopt.engines.fast_weights import Weights
from polyopt.models.activations import LayerActivations
from polyopt.models.block_stack import BlockStack, Tokens
from polyopt.models.packed_kernels import Stretches
from polyopt.models.recorder import Recorder


def prefill(
    stack: BlockStack, weights: Weights, recorder: Recorder | None, jobs: Sequence[Prefill]
) -> list[Segment]:
    """Compute segments that continue nothing."""
    parts = (_prefill(stack, weights, recorder, chunk) for chunk in chunks(jobs))
    return [segment for part in parts for segment in part]


def _keys_values(stack: BlockStack, heads: Float[Tensor, "L N R"]) -> KeyValue:
    """Keys and values [K, L, D] of one layer."""
    kernels = stack.kernels
    kept = heads[:, kernels.query_heads :, : kernels.dim].transpose(0, 1).contiguous()
    return kept[: kernels.key_heads], kept[kernels.key_heads :]


def _prefill(
    stack: BlockStack, weights: Weights, recorder: Recorder | None, jobs: Sequence[Prefill]
) -> list[Segment]:
    counts = [len(job.tokens) for job in jobs]
    ids = torch.tensor([token for job in jobs for token in job.tokens])
    positions = torch.cat([torch.arange(count) for count in counts])
    tokens = Tokens(ids, positions, Stretches.alone(counts))
    layers: list[list[KeyValue]] = [[] for _ in jobs]
    taken = recorder and recorder.take_prompts([job.tokens for job in jobs])

    def keep(activations: LayerActivations) -> None:
        index = len(layers[0])
        for own, heads in zip(layers, activations.heads.split_with_sizes(counts), strict=True):
            own.append(_keys_values(stack, heads))
        if recorder is not None and taken:
            recorder.write(taken, activations, index)

    stream = stack.run(tokens, keep)
    if recorder is not None and taken:
        recorder.write_last(taken, stream)
    last = stream[torch.tensor(counts).cumsum(0) - 1]
    normed = stack.kernels.norm(last, weights.norm)
    logits = weights.head(normed)
    return [
        Segment(job.tokens, None, own, row)
        for job, own, row in zip(jobs, layers, logits, strict=True)
    ]
