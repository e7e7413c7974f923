"""Completions as lines of arrays."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from tests.engines.small_models import VOCABULARY, decode

from polyopt.distribution import Distribution
from polyopt.engines.completions import Completions
from polyopt.engines.drawing import draw, uniforms_of
from polyopt.engines.protocol import Sample, SampleRequest
from polyopt.engines.stopping import Ending

LOGITS = torch.randn(60, VOCABULARY, generator=torch.Generator().manual_seed(0))
"""Logits of each new token: the same for all requests."""

PLAIN = SampleRequest((1, 2), seed=0, max_tokens=20, entropy=True)
MIXED = [
    PLAIN,
    dataclasses.replace(PLAIN, seed=1, prefix=(5, 6, 7), entropy=False),
    dataclasses.replace(PLAIN, seed=2, stop_ids=frozenset(range(0, VOCABULARY, 7))),
    dataclasses.replace(PLAIN, seed=3, max_tokens=1),
    dataclasses.replace(PLAIN, seed=4, stop_strings=("a", "b", "c", "d", "e")),
    dataclasses.replace(PLAIN, seed=5, distribution=Distribution(0.5, top_k=3)),
    dataclasses.replace(PLAIN, seed=6, distribution=Distribution(0.0), stop_ids=frozenset({3})),
    dataclasses.replace(PLAIN, seed=7, max_tokens=40),
]


def alone(request: SampleRequest) -> Sample:
    """The sample, token by token in the obvious way."""
    kept = len(request.prefix)
    uniforms = uniforms_of(request.seed, kept, request.max_tokens - kept)
    ending, finish = Ending(request, decode), None
    columns: list[tuple[Any, ...]] = []
    while finish is None:
        new = len(columns)
        at = slice(new, new + 1)
        drawn = draw(LOGITS[at], uniforms[at], [request.distribution], entropy=True)
        columns.append(tuple(column.item() for column in drawn if column is not None))
        finish = ending.append(columns[-1][0])
    tokens, logp, entropy = zip(*columns, strict=True)
    return Sample(request, tokens, logp, finish, 9, entropy if request.entropy else None)


def together(requests: list[SampleRequest], lines: int) -> list[Sample]:
    """The samples with a few lines: a line that ends is given to the next request."""
    completions = Completions(requests, lines, decode, version=9)
    waiting, active = list(enumerate(requests)), []
    samples: dict[int, Sample] = {}
    while waiting or active:
        while waiting and len(active) < lines:
            index, request = waiting.pop(0)
            active.append((index, int(completions.open([request])[0]), 0))
        opened = np.array([line for _, line, _ in active])
        ended = completions.draw(opened, LOGITS[[new for _, _, new in active]])
        going = []
        for (index, line, new), over in zip(active, ended.tolist(), strict=True):
            if over:
                samples[index] = completions.close(line)
            else:
                going.append((index, line, new + 1))
        active = going
    return [samples[i] for i in range(len(requests))]


def test_completions_side_by_side_are_those_drawn_one_by_one() -> None:
    assert together(MIXED, len(MIXED)) == [alone(request) for request in MIXED]


def test_a_line_that_is_used_again_keeps_nothing_of_its_last_completion() -> None:
    order = [*MIXED, *reversed(MIXED)]
    assert together(order, 2) == [alone(request) for request in order]


def test_the_newest_token_of_a_line_is_what_decoding_goes_on_with() -> None:
    completions = Completions([PLAIN] * 2, 2, decode, version=0)
    lines = completions.open([PLAIN, dataclasses.replace(PLAIN, seed=1)])
    for new in range(3):
        completions.draw(lines, LOGITS[[new, new]])
    last = completions.last(lines[::-1]).tolist()
    assert last == [completions.close(int(line)).tokens[2] for line in lines[::-1]]
