"""Decoding Llama-like models with few, large operations.

Each step reads a group's prompt keys once for all rows of the group (one product of all their
queries), the rows' own keys in another, and takes one softmax over both.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import cast

import torch
from jaxtyping import Complex, Float
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from polyopt.engines.decoder import Prefill, RowShape, Segment
from polyopt.engines.fast_block import (
    RotaryTable,
    feed_forward,
    queries_keys_values,
    rotations,
)
from polyopt.engines.fast_cache import CompletionCache, PromptCache, padding_mask
from polyopt.engines.fast_prefill import prefill
from polyopt.engines.fast_weights import (
    LayerWeights,
    Weights,
    fingerprint,
    geometry_of,
    read_weights,
    why_unsupported,
)
from polyopt.errors import UserError


class Grouping:
    """Where each row's queries go in a [S, Q] arrangement of S groups of up to Q rows.

    Attributes:
        gather: Row of each of the S * Q places (any row, where a place is empty).
        scatter: Place of each row.
        mask: Padding of the prompts, for each row.
    """

    def __init__(self, prompts: Sequence[Segment], of_row: Sequence[Segment | None]) -> None:
        slot_of = {id(prompt): slot for slot, prompt in enumerate(prompts)}
        slots = [slot_of[id(prompt)] for prompt in of_row]
        counts = [0] * len(prompts)
        ranks = []
        for slot in slots:
            ranks.append(counts[slot])
            counts[slot] += 1
        self.groups, self.most = len(prompts), max(counts)
        places = [s * self.most + r for s, r in zip(slots, ranks, strict=True)]
        self.aligned = places == list(range(self.groups * self.most))
        gather = [0] * (self.groups * self.most)
        for row, place in enumerate(places):
            gather[place] = row
        self.gather, self.scatter = torch.tensor(gather), torch.tensor(places)
        self.lengths = [len(prompts[slot].tokens) for slot in slots]
        self.columns = max(self.lengths)

    def mask(self, like: Tensor) -> Float[Tensor, "R P"] | None:
        """-inf on the padding of the rows' prompts; None if there is no padding."""
        if min(self.lengths) == self.columns:
            return None
        return padding_mask(self.lengths, self.columns, like, left=False)

    def to_groups(self, rows: Float[Tensor, "R K G X"]) -> Float[Tensor, "S*K Q*G X"]:
        """Arrange rows by group, for a product with each group's prompt."""
        _, heads, share, dim = rows.shape
        if not self.aligned:
            rows = rows.index_select(0, self.gather)
        rows = rows.view(self.groups, self.most, heads, share, dim).transpose(1, 2)
        return rows.reshape(self.groups * heads, self.most * share, dim)

    def to_rows(self, grouped: Float[Tensor, "S*K Q*G X"], heads: int) -> Float[Tensor, "R K G X"]:
        """The inverse of `to_groups`."""
        rows = grouped.view(self.groups, heads, self.most, -1, grouped.shape[-1]).transpose(1, 2)
        rows = rows.flatten(0, 1)
        return rows if self.aligned else rows.index_select(0, self.scatter)


class FastDecoder:
    """`Decoder` for the families of `fast_weights.FAMILIES`."""

    def __init__(self, model: PreTrainedModel) -> None:
        if reason := why_unsupported(model):
            raise UserError(f"the fast decoder doesn't run {reason}; use GenericDecoder.")
        self.model = model
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
        self._weights = read_weights(self.model)
        self._read = fingerprint(self.model)

    def refresh(self) -> None:
        """Read the weights again if a change shows (a replaced weight, a switched adapter)."""
        if fingerprint(self.model) != self._read:
            self.reload()

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
        small = [
            need[0] > cache.shape[0] or need[1] > cache.shape[1]
            for cache, need in zip(caches, needs, strict=True)
        ]
        for cache, need, too_small in zip(caches, needs, small, strict=True):
            if too_small:
                cache.reserve(*need)
        if self.reserved_bytes > most_bytes:
            for cache, need in zip(caches, needs, strict=True):
                cache.reserve(*need)

    def place(self, row: int, segment: Segment) -> None:
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
        own_mask = None
        if min(cache.lengths) < max(cache.lengths):
            own_mask = padding_mask(cache.lengths, max(cache.lengths), hidden, left=True)
        masks = (group.mask(hidden), own_mask)
        for layer, block in enumerate(weights.layers):
            attended = self._attend(layer, block, hidden, rotation, group, masks)
            hidden = hidden + block.out(attended)
            hidden = hidden + feed_forward(block, self.geometry, hidden)
        normed = F.rms_norm(hidden, hidden.shape[-1:], weights.norm, self.geometry.norm_eps)
        return weights.head(normed)

    def _attend(
        self,
        layer: int,
        block: LayerWeights,
        hidden: Float[Tensor, "R I"],
        rotation: Complex[Tensor, "R H+K D/2"],
        group: Grouping,
        masks: tuple[Float[Tensor, "R P"] | None, Float[Tensor, "R C"] | None],
    ) -> Float[Tensor, "R H*D"]:
        """Attention of the new tokens over prompts and completions."""
        size, cache, rows = self.geometry, self._completions, len(hidden)
        q, k, v = queries_keys_values(block, size, hidden, rotation)
        keys, values = cache.keys[layer], cache.values[layer]
        keys[:rows, :, :, cache.end - 1] = k
        values[:rows, :, cache.end - 1] = v
        window = slice(cache.start, cache.end)
        batch = rows * size.key_heads
        own_keys = keys[:rows].flatten(0, 1)[:, :, window]
        own_values = values[:rows].flatten(0, 1)[:, window]
        q = q.contiguous().view(rows, size.key_heads, -1, size.head_dim)
        prompts = self._prompts
        shared_keys = prompts.keys[layer][: group.groups].flatten(0, 1)[:, :, : group.columns]
        shared_values = prompts.values[layer][: group.groups].flatten(0, 1)[:, : group.columns]
        shared = group.to_rows(torch.bmm(group.to_groups(q), shared_keys), size.key_heads)
        own = torch.bmm(q.view(batch, -1, size.head_dim), own_keys).view(*q.shape[:3], -1)
        scores = _joined(shared, own, masks)
        weights = scores.softmax(-1, dtype=torch.float32).to(q.dtype)
        on_shared, on_own = weights[..., : group.columns], weights[..., group.columns :]
        out = torch.bmm(on_own.flatten(0, 1), own_values).view(q.shape)
        from_prompt = torch.bmm(group.to_groups(on_shared), shared_values)
        out += group.to_rows(from_prompt, size.key_heads)
        return out.flatten(1)


def _joined(
    shared: Float[Tensor, "R K G P"],
    own: Float[Tensor, "R K G C"],
    masks: tuple[Float[Tensor, "R P"] | None, Float[Tensor, "R C"] | None],
) -> Float[Tensor, "R K G P+C"]:
    """Scores on the prompt and on the completion side by side, padding masked."""
    columns = shared.shape[-1]
    scores = own.new_empty(*own.shape[:3], columns + own.shape[-1])
    parts = (scores[..., :columns], scores[..., columns:])
    for part, score, mask in zip(parts, (shared, own), masks, strict=True):
        if mask is None:
            part.copy_(score)
        else:
            torch.add(score, mask[:, None, None], out=part)
    return scores
