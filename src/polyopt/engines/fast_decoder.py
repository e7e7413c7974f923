"""Decoding Llama-like models with few, large operations.

Each step reads a group's prompt keys once for all rows of the group (one product of all their
queries), the rows' own keys in another, and takes one softmax over both.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import prod
from typing import cast

import torch
from jaxtyping import Complex, Float
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from polyopt.engines.decoder import Prefill, RowShape, Segment
from polyopt.engines.fast_attention import Grouping, Masks, attend
from polyopt.engines.fast_block import feed_forward, queries_keys_values, rotations
from polyopt.engines.fast_cache import CompletionCache, PromptCache, padding_mask
from polyopt.engines.fast_prefill import prefill
from polyopt.engines.fast_projection import projection
from polyopt.engines.fast_weights import Weights, fingerprint, read_weights
from polyopt.errors import UserError
from polyopt.models.llama_like import geometry_of, why_unsupported
from polyopt.models.recorder import Recorder
from polyopt.models.rotary import RotaryTable


class FastDecoder:
    """`Decoder` for the families of `llama_like.FAMILIES`."""

    def __init__(self, model: PreTrainedModel) -> None:
        if reason := why_unsupported(model):
            raise UserError(f"the fast decoder doesn't run {reason}; use GenericDecoder.")
        self.model = model
        self.recorder: Recorder | None = None
        self.geometry = geometry_of(model)
        self._read: Hashable = None
        self._weights: Weights
        like = cast(Tensor, model.get_input_embeddings().weight).detach()
        sizes = (self.geometry.layers, self.geometry.key_heads, self.geometry.head_dim, like)
        self._completions = CompletionCache(*sizes)
        self._prompts = PromptCache(*sizes)
        self._rotary = RotaryTable(model)
        self._grouping: Grouping | None = None
        self.token_bytes = (
            2 * like.element_size() * self.geometry.layers * self.geometry.key_heads
        ) * self.geometry.head_dim

    def reload(self) -> None:
        """Read the weights again.

        PyTorch's fused optimizers change weights without raising their version counters, so after
        an update there is nothing to compare: whoever updates the weights must say so.
        """
        self._weights = read_weights(self.model, projection)
        self._read = fingerprint(self.model)

    def refresh(self) -> None:
        """Read the weights again if a change shows (a replaced weight, a switched adapter)."""
        if fingerprint(self.model) != self._read:
            self.reload()

    @torch.inference_mode()
    def prefill(self, jobs: Sequence[Prefill]) -> list[Segment]:
        """All segments in one pass over their tokens."""
        return prefill(self._weights, self.geometry, self._rotary, jobs)

    def _rectangles(self, rows: Sequence[RowShape]) -> tuple[tuple[int, int], tuple[int, int]]:
        """Rows and columns for completions, and for prompts."""
        prompts = {row.group: row.prompt for row in rows}
        return (len(rows), CompletionCache.columns(rows)), (len(prompts), max(prompts.values()))

    def row_bytes(self, rows: Sequence[RowShape]) -> int:
        """Bytes of the completions' rectangle and of the prompts'."""
        return sum(count * columns for count, columns in self._rectangles(rows)) * self.token_bytes

    @property
    def reserved_bytes(self) -> int:
        """Bytes of the rectangles that are there."""
        return self._completions.reserved_bytes + self._prompts.reserved_bytes

    def reserve(self, rows: Sequence[RowShape], most_bytes: int) -> None:
        """Resize what is too small, or both if they take too much."""
        caches = (self._completions, self._prompts)
        needs = self._rectangles(rows)
        shapes = [
            need if need[0] > cache.shape[0] or need[1] > cache.shape[1] else cache.shape
            for cache, need in zip(caches, needs, strict=True)
        ]
        if sum(count * columns for count, columns in shapes) * self.token_bytes > most_bytes:
            shapes = list(needs)
        growth = [prod(shape) - prod(c.shape) for c, shape in zip(caches, shapes, strict=True)]
        for index in sorted(range(len(caches)), key=growth.__getitem__):
            if shapes[index] != caches[index].shape:
                caches[index].reserve(*shapes[index])

    def place(self, row: int, segment: Segment, most: int) -> None:
        """Share the prompt, copy the completion's prefix."""
        self._grouping = None
        self._prompts.place(row, segment.root)
        if segment.parent is None:
            self._completions.place(row, [], 0)
        else:
            self._completions.place(row, segment.layers, len(segment.tokens))

    def release(self, row: int) -> None:
        """Forget the row's content."""
        self._grouping = None
        self._prompts.release(row)
        self._completions.lengths[row] = 0

    def move(self, source: int, target: int) -> None:
        """Copy one row over another."""
        self._grouping = None
        self._prompts.move(source, target)
        self._completions.move(source, target)

    def shrink(self, rows: int) -> None:
        """Forget the last rows."""
        self._grouping = None
        self._prompts.shrink(rows)
        self._completions.shrink(rows)

    @torch.inference_mode()
    def step(self, tokens: Sequence[int]) -> Float[Tensor, "R V"]:
        """One token for every row."""
        cache = self._completions
        if self._grouping is None:
            self._grouping = Grouping(self._prompts.prompts, self._prompts.of_row)
        cache.grow()
        weights, group = self._weights, self._grouping
        positions = [p + c - 1 for p, c in zip(group.lengths, cache.lengths, strict=True)]
        device = weights.embedding.device
        table = self._rotary.at(torch.tensor(positions, device=device), max(positions))
        rotation = rotations(table, self.geometry)
        ids = torch.tensor(tokens, device=device)
        hidden = F.embedding(ids, weights.embedding)
        masks = (group.mask(hidden), padding_mask(cache.lengths, hidden, left=True))
        for layer, block in enumerate(weights.layers):
            attended = self._attend(layer, hidden, rotation, group, masks)
            hidden = block.out(attended).add_(hidden)
            hidden = feed_forward(block, self.geometry, hidden).add_(hidden)
        normed = F.rms_norm(hidden, hidden.shape[-1:], weights.norm, self.geometry.norm_eps)
        return weights.head(normed)

    def _attend(
        self,
        layer: int,
        hidden: Float[Tensor, "R I"],
        rotation: Complex[Tensor, "R H+K D/2"],
        group: Grouping,
        masks: Masks,
    ) -> Float[Tensor, "R H*D"]:
        """Attention of the new tokens over prompts and completions."""
        rows, own, prompts = len(hidden), self._completions, self._prompts
        block = self._weights.layers[layer]
        queries, keys, values = queries_keys_values(block, self.geometry, hidden, rotation)
        own.keys[layer][:rows, ..., own.end - 1] = keys
        own.values[layer][:rows, ..., own.end - 1] = values
        window = slice(own.start, own.end)
        return attend(
            queries.contiguous().view(rows, keys.shape[1], -1, keys.shape[2]),
            (own.keys[layer][:rows, ..., window], own.values[layer][:rows, ..., window]),
            (prompts.keys[layer][: group.groups], prompts.values[layer][: group.groups]),
            group,
            masks,
        )
