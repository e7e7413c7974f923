"""Annotations: columns that are read off the text of completions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from polyopt.batch import Batch
from polyopt.parts import part
from polyopt.rollouts.protocol import TokenTexts


def character_spans(batch: Batch, token_texts: TokenTexts) -> list[list[tuple[int, int]]]:
    """Where each completion token stands in its row's text, as (start, end) in characters."""
    spans = []
    for tokens, length in zip(batch["tokens"].tolist(), batch["lengths"].tolist(), strict=True):
        row, start = [], 0
        for text in token_texts(tokens[:length]):
            row.append((start, start + len(text)))
            start += len(text)
        spans.append(row)
    return spans


@part("rollouts.annotations", provides={"answer_tokens"})
@dataclass(frozen=True)
class MarkAnswer:
    """Column `answer_tokens` [N, T]: 1 on the tokens of the answer, after the trace.

    The answer begins after the last `mark`; without one it is the last line.

    Attributes:
        mark: What ends the trace.
    """

    mark: str = "</think>"

    def __call__(self, batch: Batch, token_texts: TokenTexts) -> Mapping[str, Tensor]:
        """The column."""
        column = torch.zeros(batch.mask.shape, dtype=torch.bool)
        spans = character_spans(batch, token_texts)
        for i, row in enumerate(spans):
            tokens = batch["tokens"][i, : len(row)].tolist()
            begin = self._begin("".join(token_texts(tokens)))
            column[i, : len(row)] = torch.tensor(
                [start >= begin for start, _ in row], dtype=torch.bool
            )
        return {"answer_tokens": column}

    def _begin(self, text: str) -> int:
        """First character of the answer."""
        found = text.rfind(self.mark)
        if found >= 0:
            return found + len(self.mark)
        return text.rstrip().rfind("\n") + 1
