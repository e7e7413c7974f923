"""Prefill of several segments at once: linear layers over all tokens, attention one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from polyopt.engines.decoder import KeyValue, Prefill, Segment, past_of
from polyopt.engines.fast_block import feed_forward, queries_keys_values, rotations
from polyopt.engines.fast_weights import Weights
from polyopt.models.llama_like import Geometry
from polyopt.models.packed_kernels import Stretches, packed_attention
from polyopt.models.rotary import RotaryTable
from polyopt.native.library import kernels_for

MOST_TOKENS = 4096
"""Tokens that pass through the linear layers together, unless one segment has more."""


def prefill(
    weights: Weights, geometry: Geometry, table: RotaryTable, jobs: Sequence[Prefill]
) -> list[Segment]:
    """Compute the segments, in passes of at most `MOST_TOKENS` tokens."""
    parts = (_prefill(weights, geometry, table, chunk) for chunk in chunks(jobs))
    return [segment for part in parts for segment in part]


def chunks(jobs: Sequence[Prefill]) -> Iterator[list[Prefill]]:
    """The jobs, at most `MOST_TOKENS` tokens at a time."""
    chunk: list[Prefill] = []
    for job in jobs:
        if chunk and sum(len(j.tokens) for j in (*chunk, job)) > MOST_TOKENS:
            yield chunk
            chunk = []
        chunk.append(job)
    yield chunk


def _prefill(
    weights: Weights, geometry: Geometry, table: RotaryTable, jobs: Sequence[Prefill]
) -> list[Segment]:
    device = weights.embedding.device
    pasts = [past_of(job) for job in jobs]
    counts = [len(job.tokens) - job.known for job in jobs]
    begins = [past[0][0].shape[1] if past else 0 for past in pasts]
    spans = [range(b, b + c) for b, c in zip(begins, counts, strict=True)]
    positions = torch.tensor([p for span in spans for p in span], device=device)
    rotation = rotations(table.at(positions, max(span.stop for span in spans)), geometry)
    tokens = [t for job in jobs for t in job.tokens[job.known :]]
    hidden = F.embedding(torch.tensor(tokens, device=device), weights.embedding)
    layers: list[list[KeyValue]] = [[] for _ in jobs]
    kernels = None if any(pasts) else kernels_for(hidden)
    stretches = Stretches.alone(counts)
    for index, block in enumerate(weights.layers):
        parts = queries_keys_values(block, geometry, hidden, rotation)
        attended = []
        for i, (q, k, v) in enumerate(zip(*(torch.split(p, counts) for p in parts), strict=True)):
            keys, values = k.transpose(0, 1), v.transpose(0, 1)
            if pasts[i]:
                keys = torch.cat([pasts[i][index][0], keys], 1)
                values = torch.cat([pasts[i][index][1], values], 1)
            if kernels is None:
                attended.append(_causal_attention(q.transpose(0, 1), keys, values))
            own = begins[i] - jobs[i].known
            layers[i].append((keys[:, own:].clone(), values[:, own:].clone()))
        if kernels is not None:
            attended = [packed_attention(kernels, *parts, stretches, 1.0).flatten(1)]
        hidden = hidden + block.out(torch.cat(attended))
        hidden = hidden + feed_forward(block, geometry, hidden)
    last = hidden[torch.tensor(counts, device=device).cumsum(0) - 1]
    normed = F.rms_norm(last, last.shape[-1:], weights.norm, geometry.norm_eps)
    logits = weights.head(normed)
    return [
        Segment(job.tokens, job.parent, own, row)
        for job, own, row in zip(jobs, layers, logits, strict=True)
    ]


def _causal_attention(
    queries: Float[Tensor, "H T D"], keys: Float[Tensor, "K L D"], values: Float[Tensor, "K L D"]
) -> Float[Tensor, "T H*D"]:
    """Attention of the last T of L tokens over all before them; queries are scaled already."""
    count, length = queries.shape[1], keys.shape[1]
    mask = None
    if count < length:
        mask = torch.ones(count, length, dtype=torch.bool, device=keys.device)
        mask = mask.tril(length - count)
    out = F.scaled_dot_product_attention(
        queries[None],
        keys[None],
        values[None],
        attn_mask=mask,
        is_causal=mask is None,
        scale=1.0,
        enable_gqa=True,
    )
    return out[0].transpose(0, 1).flatten(1)
