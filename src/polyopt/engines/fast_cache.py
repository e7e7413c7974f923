"""Keys and values for the fast decoder: prompts once per group, completions once per row."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from polyopt.engines.decoder import KeyValue, RowShape, Segment


class Rectangles:
    """Keys and values [N, K, D, C] of N sequences with C columns, per layer.

    Columns come last: products of few queries with many keys are fastest that way.
    """

    def __init__(self, layers: int, heads: int, head_dim: int, like: Tensor) -> None:
        self._size = (heads, head_dim)
        self._like = like
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self._layers = layers
        self.free()

    def free(self) -> None:
        """Let go of the memory."""
        heads, dim = self._size
        self.keys, self.values = (
            [self._like.new_empty(0, heads, dim, 0) for _ in range(self._layers)] for _ in "kv"
        )

    @property
    def shape(self) -> tuple[int, int]:
        """Sequences and columns."""
        return self.keys[0].shape[0], self.keys[0].shape[3]

    @property
    def reserved_bytes(self) -> int:
        """Bytes of both."""
        return sum(one.nbytes for one in (*self.keys, *self.values))

    def resize(self, shape: tuple[int, int], kept: int, columns: slice) -> None:
        """Reallocate layer by layer; `kept` sequences keep `columns`, which come first."""
        width = columns.stop - columns.start
        for store in (self.keys, self.values):
            for layer, old in enumerate(store):
                store[layer] = old.new_empty(shape[0], *self._size, shape[1])
                store[layer][:kept, ..., :width] = old[:kept, ..., columns]

    def reserve(self, count: int, columns: int) -> None:
        """Resize to exactly this many sequences and columns."""
        raise NotImplementedError

    def clear(self, sequences: slice, columns: slice) -> None:
        """Zero columns that are masked: fresh memory may hold NaN, which a mask lets through."""
        for one in (*self.keys, *self.values):
            one[sequences, ..., columns] = 0

    def write(self, index: int, columns: slice, layers: Sequence[KeyValue]) -> None:
        """Put a segment's keys and values into one sequence's columns."""
        for layer, (keys, values) in enumerate(layers):
            self.keys[layer][index, ..., columns] = keys.transpose(1, 2)
            self.values[layer][index, ..., columns] = values.transpose(1, 2)


class CompletionCache(Rectangles):
    """Keys and values of the rows' completions.

    Aligned on the right: every row's next token goes to column `end`.
    """

    def __init__(self, layers: int, heads: int, head_dim: int, like: Tensor) -> None:
        super().__init__(layers, heads, head_dim, like)
        self.lengths: list[int] = []
        self.end = 0

    @property
    def start(self) -> int:
        """First column in use."""
        return self.end - max(self.lengths, default=0)

    @staticmethod
    def columns(rows: Sequence[RowShape]) -> int:
        """Columns for rows of these shapes, with slack so that shifting is rare."""
        longest = max((shape.completion for shape in rows), default=0)
        return longest + max(16, longest // 8)

    def reserve(self, count: int, columns: int) -> None:
        """Resize to exactly this many rows and columns."""
        used = slice(self.start, self.end)
        self.resize((count, columns), len(self.lengths), used)
        self.end = used.stop - used.start

    def place(self, row: int, layers: Sequence[KeyValue], length: int) -> None:
        """Make the row's completion so far these `length` tokens."""
        if length > self.end:
            self._shift(length - self.end)
        begin = self.end - length
        if begin < self.start:
            self.clear(slice(0, len(self.lengths)), slice(begin, self.start))
        else:
            self.clear(slice(row, row + 1), slice(self.start, begin))
        self.write(row, slice(begin, self.end), layers)
        self.lengths[row : row + 1] = [length]

    def _shift(self, by: int) -> None:
        """Move the columns in use by `by` to the right."""
        old, new = slice(self.start, self.end), slice(self.start + by, self.end + by)
        rows = len(self.lengths)
        for one in (*self.keys, *self.values):
            one[:rows, ..., new] = one[:rows, ..., old].clone()
        self.end += by

    def move(self, source: int, target: int) -> None:
        """Copy one row over another."""
        columns = slice(self.end - self.lengths[source], self.end)
        for one in (*self.keys, *self.values):
            one[target, ..., columns] = one[source, ..., columns]
        self.lengths[target] = self.lengths[source]

    def shrink(self, rows: int) -> None:
        """Forget the last rows."""
        del self.lengths[rows:]
        if rows == 0:
            self.end = 0
            self.free()

    def grow(self) -> None:
        """Open one more column for every row, at `end - 1`."""
        if self.end == self.keys[0].shape[3]:
            self._shift(-self.start)
        self.end += 1
        self.lengths = [length + 1 for length in self.lengths]


class PromptCache(Rectangles):
    """Keys and values of the prompts of all groups that have rows."""

    def __init__(self, layers: int, heads: int, head_dim: int, like: Tensor) -> None:
        super().__init__(layers, heads, head_dim, like)
        self.prompts: list[Segment] = []
        self.of_row: list[Segment | None] = []

    def reserve(self, count: int, columns: int) -> None:
        """Resize to exactly this many prompts and columns."""
        longest = max((len(prompt.tokens) for prompt in self.prompts), default=0)
        self.resize((count, columns), len(self.prompts), slice(0, longest))
        self.clear(slice(0, len(self.prompts)), slice(longest, columns))

    def place(self, row: int, prompt: Segment) -> None:
        """Give the row this prompt, which comes in if it isn't there."""
        if row < len(self.of_row):
            self.release(row)
        self.of_row[row : row + 1] = [prompt]
        if not any(prompt is known for known in self.prompts):
            self.prompts.append(prompt)
            self._write(len(self.prompts) - 1, prompt)

    def _write(self, slot: int, prompt: Segment) -> None:
        length = len(prompt.tokens)
        self.clear(slice(slot, slot + 1), slice(length, self.shape[1]))
        self.write(slot, slice(0, length), prompt.layers)

    def _drop_unused(self) -> None:
        """Close up over prompts that no row has any more."""
        used = {id(prompt) for prompt in self.of_row}
        for slot in reversed(range(len(self.prompts))):
            if id(self.prompts[slot]) not in used:
                last = self.prompts.pop()
                if slot < len(self.prompts):
                    self.prompts[slot] = last
                    self._write(slot, last)

    def release(self, row: int) -> None:
        """The row has no prompt any more."""
        self.of_row[row] = None
        self._drop_unused()

    def move(self, source: int, target: int) -> None:
        """Give one row another's prompt."""
        self.of_row[target] = self.of_row[source]

    def shrink(self, rows: int) -> None:
        """Forget the last rows."""
        del self.of_row[rows:]
        self._drop_unused()
        if rows == 0:
            self.free()


def padding_mask(
    lengths: Sequence[int], like: Tensor, *, left: bool
) -> Float[Tensor, "R C"] | None:
    """0 on the columns in use, -inf on the padding (left or right of them); None without any."""
    columns = max(lengths)
    if min(lengths) == columns:
        return None
    counts = torch.tensor(lengths, device=like.device)[:, None]
    index = torch.arange(columns, device=like.device)[None]
    unused = index < columns - counts if left else index >= counts
    return like.new_zeros(unused.shape).masked_fill_(unused, float("-inf"))
