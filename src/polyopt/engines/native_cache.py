"""Keys and values of rows in pages of a few positions, which C kernels read by page tables.

A page has room for all layers. A row owns the pages of its completion; those of its prompt belong
to all rows with that prompt. So rows of any lengths stand side by side without padding, and giving
a row more room, moving it or dropping it copies nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from polyopt.engines.decoder import KeyValue, RowShape, Segment
from polyopt.native.decoding import Decoding, Integers, Tiles

TILE_QUERIES = 24
"""Queries of rows with one prompt that go over its keys together."""

PROMPT, OWN, PROMPT_LENGTH, LENGTH = range(4)
"""Columns of `PagedCache.sequences`."""


class Pages:
    """Pages in use and free ones, together at most `room`; a page's memory comes at first use."""

    def __init__(self, floats: int) -> None:
        self._floats = floats
        self._free: list[Tensor] = []
        self.used = 0
        self.room = 0

    @property
    def page_bytes(self) -> int:
        """Bytes of one page."""
        return 4 * self._floats

    def resize(self, room: int) -> None:
        """Have room for this many pages, the used ones included."""
        self.room = room
        del self._free[max(0, room - self.used) :]

    def take(self) -> Tensor:
        """A page; what it holds are numbers, but arbitrary ones."""
        self.used += 1
        return self._free.pop() if self._free else torch.zeros(self._floats)

    def give(self, pages: list[Tensor]) -> None:
        """Take pages back."""
        self.used -= len(pages)
        self._free += pages


@dataclass
class Prompt:
    """A prompt's pages, while rows have it."""

    segment: Segment
    pages: list[Tensor]
    table: Integers
    rows: int = 0


@dataclass
class PagedRow:
    """What one row holds."""

    prompt: Prompt | None = None
    pages: list[Tensor] = field(default_factory=list)


class PagedCache:
    """Keys and values of the rows.

    Attributes:
        sequences: What `Decoding.step` reads of each row.
    """

    def __init__(self, decoding: Decoding, share: int) -> None:
        self._decoding = decoding
        self._most = max(1, TILE_QUERIES // share)
        self.pages = Pages(decoding.page_floats)
        self._rows: list[PagedRow] = []
        self._prompts: dict[int, Prompt] = {}
        self._tables: Integers = np.zeros((0, 0), dtype=np.int64)
        self.sequences: Integers = np.zeros((0, 4), dtype=np.int64)
        self._tiles: Tiles | None = None

    def _count(self, positions: int) -> int:
        """Pages for this many positions."""
        return -(-positions // self._decoding.page)

    def needed(self, rows: Sequence[RowShape]) -> int:
        """Pages of rows of these shapes."""
        prompts = {row.group: row.prompt for row in rows}
        own = sum(self._count(row.completion) for row in rows)
        return own + sum(map(self._count, prompts.values()))

    def reserve(self, rows: Sequence[RowShape], most_bytes: int) -> None:
        """Allow for more pages, or for no more than needed if there are too many."""
        needed = self.needed(rows)
        room = max(needed, self.pages.room)
        self.pages.resize(room if room * self.pages.page_bytes <= most_bytes else needed)
        widest = max((self._count(row.completion) for row in rows), default=0)
        self._widen(len(rows), widest)

    def _widen(self, rows: int, columns: int) -> None:
        """Make the tables at least this large."""
        old, kept = self._tables, self.sequences
        if rows <= old.shape[0] and columns <= old.shape[1]:
            return
        shape = (max(rows, old.shape[0]), max(columns, old.shape[1]))
        self._tables = np.zeros(shape, dtype=np.int64)
        self._tables[: old.shape[0], : old.shape[1]] = old
        self.sequences = np.zeros((shape[0], 4), dtype=np.int64)
        self.sequences[: len(kept)] = kept
        begins = self._tables.ctypes.data + self._tables.strides[0] * np.arange(shape[0])
        self.sequences[:, OWN] = begins

    def place(self, row: int, segment: Segment) -> None:
        """Share the prompt, copy the completion's prefix."""
        if row == len(self._rows):
            self._rows.append(PagedRow())
        else:
            self.release(row)
        prompt = self._prompt(segment.root)
        prompt.rows += 1
        pages: list[Tensor] = []
        length = 0
        if segment.parent is not None:
            length = len(segment.tokens)
            pages = [self.pages.take() for _ in range(self._count(length))]
            self._tables[row, : len(pages)] = [page.data_ptr() for page in pages]
            self._write(self._tables[row], segment.layers)
        self._rows[row] = PagedRow(prompt, pages)
        line = self.sequences[row]
        line[PROMPT], line[PROMPT_LENGTH] = prompt.table.ctypes.data, len(prompt.segment.tokens)
        line[LENGTH] = length
        self._tiles = None

    def _prompt(self, segment: Segment) -> Prompt:
        """The prompt's pages, which are written if they aren't there."""
        if id(segment) not in self._prompts:
            pages = [self.pages.take() for _ in range(self._count(len(segment.tokens)))]
            table = np.array([page.data_ptr() for page in pages], dtype=np.int64)
            self._write(table, segment.layers)
            self._prompts[id(segment)] = Prompt(segment, pages, table)
        return self._prompts[id(segment)]

    def _write(self, table: Integers, layers: Sequence[KeyValue]) -> None:
        for layer, (keys, values) in enumerate(layers):
            self._decoding.write(table, layer, keys, values)

    def release(self, row: int) -> None:
        """Give back the row's pages, and its prompt's if no other row has it."""
        held = self._rows[row]
        self._tiles = None
        if held.prompt is None:
            return
        self._rows[row] = PagedRow()
        self.pages.give(held.pages)
        held.prompt.rows -= 1
        if held.prompt.rows == 0:
            self.pages.give(self._prompts.pop(id(held.prompt.segment)).pages)
        self.sequences[row, [PROMPT, PROMPT_LENGTH, LENGTH]] = 0

    def move(self, source: int, target: int) -> None:
        """Give one row's pages to another, which has none."""
        self._rows[target], self._rows[source] = self._rows[source], PagedRow()
        self._tables[target] = self._tables[source]
        columns = [PROMPT, PROMPT_LENGTH, LENGTH]
        self.sequences[target, columns] = self.sequences[source, columns]
        self._tiles = None

    def shrink(self, rows: int) -> None:
        """Forget the last rows; without any, free the memory."""
        for row in range(rows, len(self._rows)):
            self.release(row)
        del self._rows[rows:]
        if rows == 0:
            self.pages.resize(0)

    def grow(self) -> None:
        """Give a page to each row whose next token needs one."""
        lengths = self.sequences[: len(self._rows), LENGTH]
        for row in np.flatnonzero(lengths % self._decoding.page == 0):
            page = self.pages.take()
            self._tables[row, len(self._rows[row].pages)] = page.data_ptr()
            self._rows[row].pages.append(page)

    def advance(self) -> None:
        """Every row is one token longer."""
        self.sequences[: len(self._rows), LENGTH] += 1

    @property
    def last_position(self) -> int:
        """Largest position of a row's next token."""
        used = self.sequences[: len(self._rows)]
        return int((used[:, PROMPT_LENGTH] + used[:, LENGTH]).max())

    @property
    def columns(self) -> int:
        """Most positions of a row with its next token, in whole pages."""
        used, page = self.sequences[: len(self._rows)], self._decoding.page
        pages = -(-used[:, PROMPT_LENGTH] // page) + used[:, LENGTH] // page + 1
        return int(pages.max()) * page

    @property
    def tiles(self) -> Tiles:
        """Rows of each prompt side by side, a few at a time."""
        if self._tiles is None:
            prompts = self.sequences[: len(self._rows), PROMPT]
            order = np.argsort(prompts, kind="stable")
            ends = np.cumsum(np.unique(prompts, return_counts=True)[1])
            spans = zip([0, *ends], ends, strict=False)
            starts = [start for span in spans for start in range(*span, self._most)]
            self._tiles = Tiles(order, np.array([*starts, len(order)], dtype=np.int64))
        return self._tiles
