"""Continuous batching: rows decode together, a finished row's place is taken at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from polyopt.engines.admission import Queue, Ticket
from polyopt.engines.decoder import Decoder, Work
from polyopt.engines.drawing import draw, uniforms_of
from polyopt.engines.protocol import Finish, Sample
from polyopt.engines.stopping import Decode, Ending


class Row:
    """One completion while it is sampled."""

    def __init__(self, ticket: Ticket, decode: Decode) -> None:
        request = ticket.request
        self.ticket = ticket
        self.tokens = list(request.prefix)
        self.logp: list[float] = []
        self.entropy: list[float] = []
        self.finish: Finish | None = None
        self._kept = len(request.prefix)
        self._ending = Ending(request, decode)
        count = request.max_tokens - self._kept
        self.uniforms = iter(uniforms_of(request.seed, self._kept, count).tolist())
        """The draws that decide the next tokens."""

    def append(self, token: int, logp: float) -> None:
        """Take one sampled token, and notice if it is the last."""
        self.tokens.append(token)
        self.logp.append(logp)
        self.finish = self._ending.finish(self.tokens)

    def sample(self, version: int) -> Sample:
        """What the caller gets."""
        request = self.ticket.request
        return Sample(
            request=request,
            tokens=tuple(self.tokens[self._kept :]),
            logp=tuple(self.logp),
            finish=self.finish or "length",
            version=version,
            entropy=tuple(self.entropy) if request.entropy else None,
        )


class Batching:
    """Runs tickets through a decoder until all are finished."""

    def __init__(
        self,
        decoder: Decoder,
        queue: Queue,
        tickets: Sequence[Ticket],
        decode: Decode,
        work: Work,
    ) -> None:
        self._decoder = decoder
        self._queue = queue
        self._segments = queue.fill(tickets)
        self._decode = decode
        self._work = work
        self._rows: list[Row] = []
        self._finished: list[Row] = []

    def run(self, version: int) -> dict[int, Sample]:
        """All samples, by their place in the caller's list."""
        try:
            self._admit([])
            while self._rows:
                logits = self._decoder.step([row.tokens[-1] for row in self._rows])
                self._count_step()
                _draw_into(self._rows, logits)
                self._replace_finished()
        finally:
            self._decoder.shrink(0)
        return {row.ticket.index: row.sample(version) for row in self._finished}

    def _count_step(self) -> None:
        self._work.steps += 1
        self._work.decoded_tokens += len(self._rows)
        self._work.most_rows = max(self._work.most_rows, len(self._rows))

    def _replace_finished(self) -> None:
        """Give the places of finished rows to waiting requests, close up what stays empty."""
        free = [place for place, row in enumerate(self._rows) if row.finish is not None]
        for place in free:
            self._close(self._rows[place])
            self._decoder.release(place)
        if free:
            self._admit(free)

    def _close(self, row: Row) -> None:
        self._segments.done(row.ticket)
        self._finished.append(row)

    def _admit(self, free: list[int]) -> None:
        """Fill the free places and new ones from the queue, then close up the rest."""
        while True:
            active = [row.ticket for row in self._rows if row.finish is None]
            wave = self._queue.next_wave(active, self._segments)
            if not wave:
                break
            self._close_up(free, keep=len(wave))
            self._queue.reserve(active, wave, self._segments)
            segments = self._segments.of(wave)
            rows = [Row(ticket, self._decode) for ticket in wave]
            _draw_into(rows, torch.stack([segment.logits for segment in segments]))
            for row, segment in zip(rows, segments, strict=True):
                self._segments.placed(row.ticket)
                if row.finish is not None:
                    self._close(row)
                    continue
                place = free.pop(0) if free else len(self._rows)
                self._rows[place : place + 1] = [row]
                self._decoder.place(
                    place, segment, row.ticket.request.max_tokens - len(row.tokens) + 1
                )
        self._close_up(free, keep=0)

    def _close_up(self, free: list[int], keep: int) -> None:
        """Move the last rows into all but `keep` of the free places, and forget what is beyond."""
        while len(free) > keep:
            last = len(self._rows) - 1
            place = free.pop()
            if place != last:
                self._decoder.move(last, place)
                self._rows[place] = self._rows[last]
            self._rows.pop()
            self._decoder.shrink(len(self._rows))


def _draw_into(rows: Sequence[Row], logits: Tensor) -> None:
    """Draw one token for each row from its logits."""
    requests = [row.ticket.request for row in rows]
    drawn = draw(
        logits,
        np.array([next(row.uniforms) for row in rows]),
        [request.distribution for request in requests],
        entropy=any(request.entropy for request in requests),
    )
    columns = (drawn.tokens.tolist(), drawn.logp.tolist())
    if drawn.entropy is None:
        for row, token, logp in zip(rows, *columns, strict=True):
            row.append(token, logp)
        return
    for row, token, logp, entropy in zip(rows, *columns, drawn.entropy.tolist(), strict=True):
        row.append(token, logp)
        if row.ticket.request.entropy:
            row.entropy.append(entropy)
