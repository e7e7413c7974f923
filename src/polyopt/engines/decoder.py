"""What the local engine asks of a model: prefill segments, place rows, take a decoding step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from polyopt.models.recorder import Recorder

KeyValue = tuple[Tensor, Tensor]
"""Keys [K, L, D] and values [K, L, D] of one layer: K key-value heads, L tokens."""


@dataclass(eq=False)
class Segment:
    """A run of tokens with its keys and values, computed once and shared by many rows.

    Attributes:
        tokens: The tokens of this run alone.
        parent: The segment it continues (a prompt, for a completion's prefix), or None.
        layers: Keys and values of this run, one pair per layer.
        logits: Logits [V] after the last token.
    """

    tokens: tuple[int, ...]
    parent: Segment | None
    layers: list[KeyValue]
    logits: Tensor

    @property
    def root(self) -> Segment:
        """The segment at the start of the sequence: the prompt."""
        return self if self.parent is None else self.parent.root

    @property
    def length(self) -> int:
        """Tokens up to the end of this segment, its parents' included."""
        return len(self.tokens) + (0 if self.parent is None else self.parent.length)


@dataclass(frozen=True)
class Prefill:
    """A segment to compute.

    Attributes:
        tokens: Its tokens.
        parent: The segment it continues, or None.
        alike: A segment with the same parent whose first `known` tokens are the same.
        known: How many of the tokens needn't be computed; fewer than all.
    """

    tokens: tuple[int, ...]
    parent: Segment | None = None
    alike: Segment | None = None
    known: int = 0


class RowShape(NamedTuple):
    """Room that a row needs: tokens of its prompt, and at most of its completion.

    Rows of one group have the same prompt.
    """

    prompt: int
    completion: int
    group: int


class Decoder(Protocol):
    """A causal LM with a key-value cache of rows 0..n-1, all of which take a step together.

    Attributes:
        recorder: Where to keep activations of rows that begin at their prompts, if anybody wants
            them and the decoder can.
    """

    recorder: Recorder | None

    def reload(self) -> None:
        """Take over the model's weights, which were updated."""

    def refresh(self) -> None:
        """Take over the model's weights as they are now."""

    def prefill(self, jobs: Sequence[Prefill]) -> list[Segment]:
        """Compute segments, none of which is another's parent."""

    def reserve(self, rows: Sequence[RowShape], most_bytes: int) -> None:
        """Make room for rows of these shapes; rows that are placed keep their content.

        Room that is there already is kept even if it is more than needed, unless it takes more
        than `most_bytes`. While memory is moved, one layer's is there twice.
        """

    def place(self, row: int, segment: Segment, most: int) -> None:
        """Make `row` a sequence that ends with `segment`; `row` may be one past the last.

        At most `most` tokens will be appended to it.
        """

    def release(self, row: int) -> None:
        """Forget the row's content; it must be placed or moved over before the next step."""

    def move(self, source: int, target: int) -> None:
        """Row `source` becomes row `target`, which was released; `source` is released."""

    def shrink(self, rows: int) -> None:
        """Forget all rows from `rows` on; with none left, the memory is free again."""

    def step(self, tokens: Sequence[int]) -> Tensor:
        """Append one token to each row; the logits [R, V] after it, until the next step."""

    def row_bytes(self, rows: Sequence[RowShape]) -> int:
        """Cache memory for rows of these shapes, segments not counted."""

    @property
    def reserved_bytes(self) -> int:
        """Cache memory that is reserved now, segments not counted."""

    @property
    def token_bytes(self) -> int:
        """Memory of one token's keys and values in a segment."""


@dataclass
class Work:
    """What one call of `sample` cost.

    Attributes:
        prefilled_tokens: Tokens computed outside decoding steps.
        steps: Decoding steps.
        decoded_tokens: Tokens computed in them.
        most_rows: Most rows decoded together.
        most_cache_bytes: Most cache memory reserved at a time.
    """

    prefilled_tokens: int = 0
    steps: int = 0
    decoded_tokens: int = 0
    most_rows: int = 0
    most_cache_bytes: int = 0


def past_of(job: Prefill) -> list[KeyValue]:
    """Keys and values of all that comes before the tokens to compute, per layer."""
    parts: list[list[KeyValue]] = []
    part = job.parent
    while part is not None:
        parts.insert(0, part.layers)
        part = part.parent
    if job.alike is not None and job.known:
        parts.append([(k[:, : job.known], v[:, : job.known]) for k, v in job.alike.layers])
    return [
        (torch.cat([k for k, _ in pairs], 1), torch.cat([v for _, v in pairs], 1))
        for pairs in zip(*parts, strict=True)
    ]
