"""From a batch to what the model's forward takes: rows of ids, and micro-batches of rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from polyopt.batch import Batch


@dataclass(frozen=True)
class Rows:
    """Right-padded rows prompt + completion, and the M places where tokens are predicted.

    Rows start at position 0 and padding stands on the right, where a causal model's tokens can't
    see it; so neither position ids nor an attention mask are needed.

    Attributes:
        input_ids: Ids up to the last position that predicts a trained token; 0 in padding.
        row: Row of each predicted token.
        position: Position, along L, of the hidden state that predicts it.
        column: Its column t in the batch.
        targets: Its id.
        prompt_lengths: Prompt length of each row in tokens.
        shape: (N, T) of the batch.
    """

    input_ids: Int[Tensor, "N L"]
    row: Int[Tensor, " M"]
    position: Int[Tensor, " M"]
    column: Int[Tensor, " M"]
    targets: Int[Tensor, " M"]
    prompt_lengths: Int[Tensor, " N"]
    shape: tuple[int, int]

    def scatter(self, flat: Tensor) -> Tensor:
        """Values [M] of the predicted tokens in their places in [N, T], 0 elsewhere."""
        return flat.new_zeros(self.shape).index_put((self.row, self.column), flat)

    def gather(self, values: Float[Tensor, "N T"]) -> Float[Tensor, " M"]:
        """Values of the predicted tokens."""
        return values.to(self.row.device)[self.row, self.column]

    def each(self) -> Iterator[Rows]:
        """The rows that predict something, one by one."""
        for row, used in enumerate(self.fed()):
            own = self.row == row
            if used:
                parts = (self.position[own], self.column[own], self.targets[own])
                only = (self.input_ids[row : row + 1, :used], self.row[own] * 0, *parts)
                yield Rows(*only, self.prompt_lengths[row : row + 1], (1, self.shape[1]))

    def fed(self) -> list[int]:
        """Tokens of each row up to the last one that predicts a token."""
        used = torch.zeros_like(self.prompt_lengths)
        counts: list[int] = used.scatter_reduce(0, self.row, self.position + 1, "amax").tolist()
        return counts

    def to(self, device: torch.device) -> Rows:
        """The rows with every tensor on `device`."""
        moved: dict[str, Any] = {
            name: value.to(device) for name, value in vars(self).items() if name != "shape"
        }
        return dataclasses.replace(self, **moved)


def rows_of(batch: Batch) -> Rows:
    """The rows of a batch: `prompt_tokens[:prompt_lengths] + tokens[:lengths]`.

    Lengths decide what belongs to a row, never a padding id, since that may be an ordinary token
    or the end-of-sequence token.

    Raises:
        ValueError: A trained token without a position that predicts it (empty prompt), or beyond
            the end of its completion.
    """
    tokens, lengths = batch["tokens"], batch["lengths"]
    prompt, starts = batch["prompt_tokens"], batch["prompt_lengths"]
    row, column = batch.mask.nonzero(as_tuple=True)
    _check(row, column, lengths, starts)
    position = starts[row] + column - 1
    width = int(position.max()) + 1 if len(position) else 1
    place = torch.arange(width, device=row.device).expand(len(batch), width)
    in_prompt, in_row = place < starts[:, None], place < (starts + lengths)[:, None]
    ids = torch.zeros_like(place)
    if prompt.shape[1]:
        ids = torch.where(in_prompt, prompt.gather(1, place.clamp(max=prompt.shape[1] - 1)), ids)
    if tokens.shape[1]:
        own = (place - starts[:, None]).clamp(0, tokens.shape[1] - 1)
        ids = torch.where(in_row & ~in_prompt, tokens.gather(1, own), ids)
    shape = (len(batch), batch.width)
    return Rows(ids, row, position, column, tokens[row, column], starts, shape)


def _check(row: Tensor, column: Tensor, lengths: Tensor, starts: Tensor) -> None:
    if bool((column >= lengths[row]).any()):
        bad = int(row[(column >= lengths[row]).nonzero()[0, 0]])
        raise ValueError(
            f"row {bad}: mask is set beyond the completion's {int(lengths[bad])} tokens"
        )
    if bool((starts[row] + column < 1).any()):
        bad = int(row[(starts[row] + column < 1).nonzero()[0, 0]])
        raise ValueError(
            f"row {bad}: its prompt is empty, so no position predicts its first token; give the "
            "prompt at least one token (such as BOS)"
        )


def longest_row(batch: Batch) -> int:
    """Tokens of the longest row of a batch that has any."""
    return int((batch["prompt_lengths"] + batch["lengths"]).max())


def micro_batches(batch: Batch, micro_tokens: int) -> list[Int[Tensor, " rows"]]:
    """Indices of the rows of each micro-batch: rows of like length, under a token budget.

    Rows are taken longest first (ties in order of row), so rows x padded width <= `micro_tokens`;
    a single longer row is a micro-batch of its own. The same batch always gives the same split.
    """
    if micro_tokens < 1:
        raise ValueError(f"micro_tokens must be at least 1, not {micro_tokens}")
    if not len(batch):
        return []
    totals = (batch["prompt_lengths"] + batch["lengths"]).cpu()
    order = totals.argsort(descending=True, stable=True)
    widths = totals[order].clamp(min=1).tolist()
    splits, start = [], 0
    while start < len(widths):
        rows = max(micro_tokens // widths[start], 1)
        splits.append(order[start : start + rows])
        start += rows
    return splits


def shared_micro_batches(batch: Batch, micro_tokens: int) -> list[Int[Tensor, " rows"]]:
    """As `micro_batches`, for the packed forward: rows with one prompt stay together.

    Counted are the tokens that are encoded: completions, and each prompt once. Prompts are taken
    in order of their longest row, the rows of a prompt longest first.
    """
    if micro_tokens < 1:
        raise ValueError(f"micro_tokens must be at least 1, not {micro_tokens}")
    if not len(batch):
        return []
    starts, lengths = batch["prompt_lengths"].cpu(), batch["lengths"].cpu()
    prompt = same_prompts(batch["prompt_tokens"].cpu(), starts)
    longest = torch.zeros(len(batch), dtype=torch.long)
    longest.scatter_reduce_(0, prompt, lengths + starts, "amax")
    keys = zip((-longest[prompt]).tolist(), prompt.tolist(), (-lengths).tolist(), strict=True)
    order = [row for _, row in sorted(zip(keys, range(len(batch)), strict=True))]
    splits: list[list[int]] = [[]]
    total, held = 0, set[int]()
    for row in order:  # greedy, so row by row
        own, stem = int(lengths[row]), int(prompt[row])
        cost = own if stem in held else own + int(starts[row])
        if splits[-1] and total + cost > micro_tokens:
            splits.append([])
            total, held, cost = 0, set(), own + int(starts[row])
        splits[-1].append(row)
        total, held = total + cost, held | {stem}
    return [torch.tensor(rows) for rows in splits]


def same_prompts(tokens: Int[Tensor, "N L"], lengths: Int[Tensor, " N"]) -> Int[Tensor, " N"]:
    """A number for each row, equal for rows whose first `lengths` tokens are equal."""
    tokens = tokens[:, : int(lengths.max())]
    beyond = torch.arange(tokens.shape[1], device=tokens.device) >= lengths[:, None]
    text = torch.cat([lengths[:, None], tokens.masked_fill(beyond, 0)], 1)
    number: Tensor = torch.unique(text, dim=0, return_inverse=True)[1]
    return number
