"""Keys and values for the fast decoder: prompts once per group, completions once per row."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from polyopt.engines.decoder import KeyValue, RowShape, Segment

Allocate = Callable[..., Tensor]


class CompletionCache:
    """Keys [R, K, D, C] and values [R, K, C, D] of the rows' completions, per layer.

    Aligned on the right: every row's next token goes to column `end`.
    """

    def __init__(self, layers: int, heads: int, head_dim: int, like: Tensor) -> None:
        self._size = (heads, head_dim)
        self.keys = [like.new_empty(0, heads, head_dim, 0) for _ in range(layers)]
        self.values = [like.new_empty(0, heads, 0, head_dim) for _ in range(layers)]
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

    def reserve(self, rows: int, columns: int) -> None:
        """Reallocate if there is less room, layer by layer."""
        old_rows, _, _, old_columns = self.keys[0].shape
        if rows <= old_rows and columns <= old_columns:
            return
        rows, columns = max(rows, old_rows), max(columns, old_columns)
        used = slice(self.start, self.end)
        width = self.end - self.start
        heads, dim = self._size
        for layer, (keys, values) in enumerate(zip(self.keys, self.values, strict=True)):
            self.keys[layer] = keys.new_zeros(rows, heads, dim, columns)
            self.keys[layer][:old_rows, :, :, :width] = keys[:, :, :, used]
            self.values[layer] = values.new_zeros(rows, heads, columns, dim)
            self.values[layer][:old_rows, :, :width] = values[:, :, used]
        self.end = width

    def place(self, row: int, layers: Sequence[KeyValue], length: int) -> None:
        """Make the row's completion so far these `length` tokens."""
        if length > self.end:
            self._shift(length - self.end)
        columns = slice(self.end - length, self.end)
        for layer, (keys, values) in enumerate(layers if length else ()):
            self.keys[layer][row, :, :, columns] = keys.transpose(1, 2)
            self.values[layer][row, :, columns] = values
        self.lengths[row : row + 1] = [length]

    def _shift(self, by: int) -> None:
        """Move the columns in use by `by` to the right."""
        old, new = slice(self.start, self.end), slice(self.start + by, self.end + by)
        rows = len(self.lengths)
        for keys, values in zip(self.keys, self.values, strict=True):
            keys[:rows, :, :, new] = keys[:rows, :, :, old].clone()
            values[:rows, :, new] = values[:rows, :, old].clone()
        self.end += by

    def move(self, source: int, target: int) -> None:
        """Copy one row over another."""
        columns = slice(self.end - self.lengths[source], self.end)
        for keys, values in zip(self.keys, self.values, strict=True):
            keys[target, :, :, columns] = keys[source, :, :, columns]
            values[target, :, columns] = values[source, :, columns]
        self.lengths[target] = self.lengths[source]

    def shrink(self, rows: int) -> None:
        """Forget the last rows."""
        del self.lengths[rows:]
        if rows == 0:
            self.end = 0

    def grow(self) -> None:
        """Open one more column for every row, at `end - 1`."""
        if self.end == self.keys[0].shape[3]:
            self._shift(-self.start)
        self.end += 1
        self.lengths = [length + 1 for length in self.lengths]


class PromptCache:
    """Keys [S, K, D, P] and values [S, K, P, D] of the prompts of all groups with rows."""

    def __init__(self, layers: int, heads: int, head_dim: int, like: Tensor) -> None:
        self._size = (heads, head_dim)
        self.keys = [like.new_empty(0, heads, head_dim, 0) for _ in range(layers)]
        self.values = [like.new_empty(0, heads, 0, head_dim) for _ in range(layers)]
        self.prompts: list[Segment] = []
        self.of_row: list[Segment | None] = []

    def reserve(self, prompts: int, columns: int) -> None:
        """Reallocate if there is less room, layer by layer."""
        old_prompts, _, _, old_columns = self.keys[0].shape
        if prompts <= old_prompts and columns <= old_columns:
            return
        prompts, columns = max(prompts, old_prompts), max(columns, old_columns)
        heads, dim = self._size
        for layer, (keys, values) in enumerate(zip(self.keys, self.values, strict=True)):
            self.keys[layer] = keys.new_zeros(prompts, heads, dim, columns)
            self.keys[layer][:old_prompts, :, :, :old_columns] = keys
            self.values[layer] = values.new_zeros(prompts, heads, columns, dim)
            self.values[layer][:old_prompts, :, :old_columns] = values

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
        for layer, (keys, values) in enumerate(prompt.layers):
            self.keys[layer][slot, :, :, :length] = keys.transpose(1, 2)
            self.values[layer][slot, :, :length] = values

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


def padding_mask(
    lengths: Sequence[int], columns: int, like: Tensor, *, left: bool
) -> Float[Tensor, "R C"]:
    """0 on the columns in use and -inf on the padding, which is on the left or right."""
    counts = torch.tensor(lengths, device=like.device)[:, None]
    index = torch.arange(columns, device=like.device)[None]
    unused = index < columns - counts if left else index >= counts
    return like.new_zeros(unused.shape).masked_fill_(unused, float("-inf"))
