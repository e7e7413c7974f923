"""Decoding Llama-like models in C: a step of all rows is one call."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from polyopt.engines.decoder import Prefill, RowShape, Segment
from polyopt.engines.fast_prefill import prefill
from polyopt.engines.fast_weights import fingerprint
from polyopt.engines.native_cache import PagedCache
from polyopt.engines.native_prefill import prefill as recorded_prefill
from polyopt.engines.native_weights import NativeWeights
from polyopt.errors import UserError
from polyopt.models.activations import Activations
from polyopt.models.block_stack import BlockStack, why_not_stacked
from polyopt.models.llama_like import geometry_of, why_not_native
from polyopt.models.recorder import Recorder
from polyopt.models.rotary import RotaryTable
from polyopt.native.decoding import Decoding, Keeping, RecordStruct
from polyopt.native.library import native


class NativeDecoder:
    """`Decoder` for the families of `llama_like.FAMILIES` in float32."""

    def __init__(self, model: PreTrainedModel) -> None:
        if reason := why_not_native(model):
            raise UserError(f"the native decoder doesn't run {reason}; use GenericDecoder.")
        kernels = native()
        assert kernels is not None
        self.model = model
        self.recorder: Recorder | None = None
        self._tracks: list[int] = []
        self._record: tuple[Activations, RecordStruct] | None = None
        self._stack = BlockStack(model) if why_not_stacked(model) is None else None
        self.geometry = geometry_of(model)
        sizes = (self.geometry.layers, self.geometry.key_heads, self.geometry.head_dim)
        self._decoding = Decoding(kernels, *sizes)
        self._weights = NativeWeights(kernels, self.geometry)
        self._cache = PagedCache(
            self._decoding, self.geometry.query_heads // self.geometry.key_heads
        )
        self._rotary = RotaryTable(model)
        self._read: Hashable = None
        self._logits = torch.empty(0, 0)
        self.token_bytes = 8 * self.geometry.layers * self.geometry.key_heads
        self.token_bytes *= self.geometry.head_dim

    def reload(self) -> None:
        """Pack the weights again.

        PyTorch's fused optimizers change weights without raising their version counters, so after
        an update there is nothing to compare: whoever updates the weights must say so.
        """
        self._weights.read(self.model)
        self._read = fingerprint(self.model)

    def refresh(self) -> None:
        """Pack the weights again if a change shows (a replaced weight, a switched adapter)."""
        if fingerprint(self.model) != self._read:
            self.reload()

    def rest(self) -> None:
        """Give the packed weights back."""
        if self._read is not None:
            self._weights.free()
            self._read = None

    @torch.inference_mode()
    def prefill(self, jobs: Sequence[Prefill]) -> list[Segment]:
        """All segments in one pass over their tokens."""
        weights, geometry = self._weights.weights, self.geometry
        if self._stack is None or any(job.parent or job.known for job in jobs):
            return prefill(weights, geometry, self._rotary, jobs)
        return recorded_prefill(self._stack, weights, self.recorder, jobs)

    def row_bytes(self, rows: Sequence[RowShape]) -> int:
        """Bytes of the rows' pages."""
        return self._cache.needed(rows) * self._cache.pages.page_bytes

    @property
    def reserved_bytes(self) -> int:
        """Bytes of all pages that there may be."""
        return self._cache.pages.room * self._cache.pages.page_bytes

    def reserve(self, rows: Sequence[RowShape], most_bytes: int) -> None:
        """Allow for the rows' pages."""
        self._cache.reserve(rows, most_bytes)

    def place(self, row: int, segment: Segment, most: int) -> None:
        """Share the prompt, copy the completion's prefix."""
        self._cache.place(row, segment)
        if row < len(self._tracks):
            self._close(row)
        else:
            self._tracks.append(-1)
        if self.recorder is not None and segment.parent is None:
            self._tracks[row] = self.recorder.track(segment.tokens, most)

    def _close(self, row: int) -> None:
        if self.recorder is not None:
            self.recorder.close(self._tracks[row])
        self._tracks[row] = -1

    def release(self, row: int) -> None:
        """Give back the row's pages."""
        self._cache.release(row)
        self._close(row)

    def move(self, source: int, target: int) -> None:
        """Hand one row's pages to another."""
        self._cache.move(source, target)
        self._tracks[target], self._tracks[source] = self._tracks[source], -1

    def shrink(self, rows: int) -> None:
        """Forget the last rows."""
        self._cache.shrink(rows)
        for row in range(rows, len(self._tracks)):
            self._close(row)
        del self._tracks[rows:]
        if rows == 0:
            self._logits = torch.empty(0, 0)

    def _record_struct(self, activations: Activations) -> RecordStruct:
        if self._record is None or self._record[0] is not activations:
            self._record = activations, RecordStruct.of(activations)
        return self._record[1]

    @torch.inference_mode()
    def step(self, tokens: Sequence[int]) -> Float[Tensor, "R V"]:
        """One token for every row."""
        cache, vocabulary = self._cache, self._weights.struct.head.outputs
        if len(self._logits) < len(tokens):
            self._logits = torch.empty(len(tokens), vocabulary)
        cache.grow()
        logits = self._logits[: len(tokens)]
        keeping = None
        if self.recorder is not None and self.recorder.activations is not None:
            places = self.recorder.take(np.array(self._tracks), tokens)
            keeping = Keeping(self._record_struct(self.recorder.activations), places)
        self._decoding.step(
            self._weights.struct,
            tokens,
            cache.sequences,
            cache.tiles,
            cache.columns,
            self._rotary.upto(cache.last_position),
            logits,
            keeping,
        )
        cache.advance()
        return logits
