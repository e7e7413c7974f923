"""Decoding any Hugging Face causal LM through its own forward: the reference for faster ways."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from polyopt.engines.decoder import Prefill, RowShape, Segment, past_of
from polyopt.errors import UserError
from polyopt.models.recorder import Recorder


class RowsLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """One layer's keys and values of all rows in a preallocated buffer [R, K, C, D].

    Rows are aligned on the right: columns `start` to `end` are in use, a row of l tokens fills the
    last l of them. So a new token goes to one column for all rows, and distances between columns
    are distances between positions, which sliding windows rely on.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.buffers: list[Tensor] = []
        self.rows = self.start = self.end = 0

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the new column and return all columns in use."""
        for buffer, states in zip(self.buffers, (key_states, value_states), strict=True):
            buffer[: self.rows, :, self.end : self.end + 1] = states
        window = slice(self.start, self.end + 1)
        keys, values = self.buffers
        return keys[: self.rows, :, window], values[: self.rows, :, window]

    def get_seq_length(self) -> int:
        """Columns in use."""
        return self.end - self.start


class GenericDecoder:
    """`Decoder` over the model's own forward, with left-padded rows and a 2-D attention mask."""

    def __init__(self, model: PreTrainedModel) -> None:
        _check_cacheable(model)
        self.model = model
        self.recorder: Recorder | None = None
        self.device = model.device
        parameters = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}
        self._probe = self.prefill([Prefill((0,))])[0].layers
        self._layers = [RowsLayer() for _ in self._probe]
        self._cache = Cache(layers=list(self._layers))
        self._lengths: list[int] = []
        self._capacity = self._end = 0

    @property
    def _start(self) -> int:
        """First column in use."""
        return self._end - max(self._lengths, default=0)

    def reload(self) -> None:
        """Nothing to do: the model's own weights are read at every step."""

    def refresh(self) -> None:
        """Nothing to do: every step reads the model's weights."""

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values."""
        return sum(t.numel() * t.element_size() for pair in self._probe for t in pair)

    def prefill(self, jobs: Sequence[Prefill]) -> list[Segment]:
        """Compute the segments one by one."""
        return [self._prefill(job) for job in jobs]

    def _prefill(self, job: Prefill) -> Segment:
        past = past_of(job)
        cache = DynamicCache()
        done = 0
        for index, (keys, values) in enumerate(past):
            cache.update(keys[None], values[None], index)
            done = keys.shape[1]
        tokens = torch.tensor([job.tokens[job.known :]], device=self.device)
        positions = torch.arange(done, done + tokens.shape[1], device=self.device)[None]
        logits = self._forward(tokens, positions, cache, None)[0, -1]
        own = done - job.known
        layers = [
            (layer.keys[0, :, own:].clone(), layer.values[0, :, own:].clone())
            for layer in cast(list[Any], cache.layers)
        ]
        return Segment(job.tokens, job.parent, layers, logits.clone())

    def _forward(
        self, tokens: Tensor, positions: Tensor, cache: Cache, mask: Tensor | None
    ) -> Tensor:
        inputs = {self._cache_name: cache, **self._last_only}
        output = self.model(
            input_ids=tokens, position_ids=positions, attention_mask=mask, use_cache=True, **inputs
        )
        return cast(Tensor, output.logits)

    def _columns(self, rows: Sequence[RowShape]) -> int:
        """Columns for rows of these shapes, with slack so that shifting the window is rare."""
        longest = max((shape.prompt + shape.completion for shape in rows), default=0)
        return longest + max(32, longest // 4)

    def row_bytes(self, rows: Sequence[RowShape]) -> int:
        """Bytes of the rectangle of rows and columns."""
        return len(rows) * self._columns(rows) * self.token_bytes

    @property
    def reserved_bytes(self) -> int:
        """Bytes of the rectangle that is there."""
        return sum(buffer.nbytes for layer in self._layers for buffer in layer.buffers)

    def reserve(self, rows: Sequence[RowShape], most_bytes: int) -> None:
        """Reallocate when the rectangle is too small or too large, layer by layer."""
        columns = self._columns(rows)
        have = len(self._layers[0].buffers[0]) if self._layers[0].buffers else 0
        fits = columns <= self._capacity and len(rows) <= have
        if fits and self.reserved_bytes <= most_bytes:
            return
        kept, used = len(self._lengths), slice(self._start, self._end)
        width = self._end - self._start
        for layer, probe in zip(self._layers, self._probe, strict=True):
            for i, one in enumerate(probe):
                buffer = one.new_zeros(len(rows), one.shape[0], columns, one.shape[2])
                if kept:
                    buffer[:kept, :, :width] = layer.buffers[i][:kept, :, used]
                layer.buffers[i : i + 1] = [buffer]
        self._capacity, self._end = columns, width

    def place(self, row: int, segment: Segment, most: int) -> None:
        """Copy the segment and its parents into the row's last columns."""
        length = segment.length
        if length > self._end:
            self._shift(length - self._end)
        column = self._end
        part: Segment | None = segment
        while part is not None:
            begin = column - len(part.tokens)
            for layer, pair in zip(self._layers, part.layers, strict=True):
                for buffer, one in zip(layer.buffers, pair, strict=True):
                    buffer[row, :, begin:column] = one
            column, part = begin, part.parent
        if row == len(self._lengths):
            self._lengths.append(length)
        else:
            self._lengths[row] = length

    def _shift(self, by: int) -> None:
        """Move the columns in use to the right by `by` (to the left if negative)."""
        old = slice(self._start, self._end)
        new = slice(self._start + by, self._end + by)
        for layer in self._layers:
            for buffer in layer.buffers:
                buffer[:, :, new] = buffer[:, :, old].clone()
        self._end += by

    def release(self, row: int) -> None:
        """An empty row doesn't hold columns in use."""
        self._lengths[row] = 0

    def move(self, source: int, target: int) -> None:
        """Copy one row over another."""
        for layer in self._layers:
            for buffer in layer.buffers:
                buffer[target] = buffer[source]
        self._lengths[target] = self._lengths[source]

    def shrink(self, rows: int) -> None:
        """Forget the last rows."""
        del self._lengths[rows:]
        if rows == 0:
            self._end = self._capacity = 0
            for layer in self._layers:
                layer.buffers = []

    def step(self, tokens: Sequence[int]) -> Tensor:
        """One forward over all rows."""
        if self._end == self._capacity:
            self._shift(-self._start)
        for layer in self._layers:
            layer.rows, layer.start, layer.end = len(tokens), self._start, self._end
        lengths = torch.tensor(self._lengths, device=self.device)
        width = self._end - self._start + 1
        columns = torch.arange(width, device=self.device)
        mask = (columns[None] >= width - 1 - lengths[:, None]).long()
        ids = torch.tensor(tokens, device=self.device)[:, None]
        logits = self._forward(ids, lengths[:, None], self._cache, mask)[:, -1]
        self._end += 1
        self._lengths = [length + 1 for length in self._lengths]
        return logits


def _check_cacheable(model: PreTrainedModel) -> None:
    """Refuse models whose layers keep more than keys and values of positions."""
    kinds = set(getattr(model.config.get_text_config(decoder=True), "layer_types", None) or ())
    if strange := kinds - {"full_attention", "sliding_attention"}:
        raise UserError(
            f"the local engine can't share and fork the state of {', '.join(sorted(strange))} "
            f"layers (model type {model.config.model_type}); sample it through another engine."
        )
