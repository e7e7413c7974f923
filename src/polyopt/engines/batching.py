"""Continuous batching: rows decode together, a finished row's place is taken at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from polyopt.engines.admission import Queue, Ticket
from polyopt.engines.completions import Completions, new_tokens
from polyopt.engines.decoder import Decoder, Work
from polyopt.engines.protocol import Sample


class Row(NamedTuple):
    """What takes part in decoding steps: a ticket, and the line of its completion."""

    ticket: Ticket
    line: int


class Batching:
    """Runs tickets through a decoder until all are finished."""

    def __init__(
        self,
        decoder: Decoder,
        queue: Queue,
        tickets: Sequence[Ticket],
        completions: Completions,
        work: Work,
    ) -> None:
        self._decoder = decoder
        self._queue = queue
        self._segments = queue.fill(tickets)
        self._completions = completions
        self._work = work
        self._rows: list[Row] = []
        self._lines = np.zeros(0, np.int64)
        self._samples: dict[int, Sample] = {}

    def run(self) -> dict[int, Sample]:
        """All samples, by their place in the caller's list."""
        try:
            self._admit([])
            while self._rows:
                logits = self._decoder.step(self._completions.last(self._lines).tolist())
                self._count_step()
                ended = self._completions.draw(self._lines, logits)
                if ended.any():
                    self._replace(np.flatnonzero(ended).tolist())
        finally:
            self._decoder.shrink(0)
        return self._samples

    def _count_step(self) -> None:
        self._work.steps += 1
        self._work.decoded_tokens += len(self._rows)
        self._work.most_rows = max(self._work.most_rows, len(self._rows))

    def _replace(self, finished: list[int]) -> None:
        """Give the places of finished rows to waiting requests, close up what stays empty."""
        for place in finished:
            self._close(self._rows[place])
            self._decoder.release(place)
        self._admit(finished)

    def _close(self, row: Row) -> None:
        self._segments.done(row.ticket)
        self._samples[row.ticket.index] = self._completions.close(row.line)

    def _admit(self, free: list[int]) -> None:
        """Fill the free places and new ones from the queue, then close up the rest."""
        while self._queue:
            empty = set(free)
            active = [row.ticket for place, row in enumerate(self._rows) if place not in empty]
            wave = self._queue.next_wave(active, self._segments)
            if not wave:
                break
            self._close_up(free, keep=len(wave))
            self._queue.reserve(active, wave, self._segments)
            self._begin(wave, free)
        self._close_up(free, keep=0)
        self._lines = np.array([row.line for row in self._rows], np.int64)

    def _begin(self, wave: Sequence[Ticket], free: list[int]) -> None:
        """Draw each ticket's first token, and give a place to those that go on."""
        segments = self._segments.of(wave)
        lines = self._completions.open([ticket.request for ticket in wave])
        ended = self._completions.draw(lines, torch.stack([s.logits for s in segments]))
        rows = map(Row, wave, lines.tolist())
        for row, segment, over in zip(rows, segments, ended.tolist(), strict=True):
            self._segments.placed(row.ticket)
            if over:
                self._close(row)
                continue
            place = free.pop(0) if free else len(self._rows)
            self._rows[place : place + 1] = [row]
            self._decoder.place(place, segment, new_tokens(row.ticket.request))

    def _close_up(self, free: list[int], keep: int) -> None:
        """Move the last rows into all but `keep` of the free places, and forget what is beyond."""
        while len(free) > keep:
            place, row = free.pop(), self._rows.pop()
            if place < len(self._rows):
                self._decoder.move(len(self._rows), place)
                self._rows[place] = row
        self._decoder.shrink(len(self._rows))
