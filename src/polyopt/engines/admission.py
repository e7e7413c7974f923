"""Which requests get a row next, which segments they need, and whether the budget has room."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from polyopt.engines.decoder import Decoder, Prefill, RowShape, Segment, Work
from polyopt.engines.protocol import SampleRequest
from polyopt.errors import UserError

Key = tuple[tuple[int, ...], tuple[int, ...]]
"""A segment's name: the prompt, and the completion's prefix after it."""


@dataclass(frozen=True)
class Ticket:
    """A request that waits for a row.

    Attributes:
        index: Its place in the caller's list.
        request: What is asked for.
        key: The segment it continues; an empty prompt's prefix takes the prompt's place.
        shape: The room its row needs: the prompt, and the most tokens after what counts as that.
    """

    index: int
    request: SampleRequest
    key: Key
    shape: RowShape

    @classmethod
    def of(cls, index: int, request: SampleRequest, group: int) -> Ticket:
        """The request's ticket; requests of one group have the same prompt."""
        if request.prompt:
            shape = RowShape(len(request.prompt), request.max_tokens, group)
            return cls(index, request, (request.prompt, request.prefix), shape)
        prefix = request.prefix
        shape = RowShape(len(prefix), request.max_tokens - len(prefix), group)
        return cls(index, request, (prefix, ()), shape)


class Segments:
    """The live segments: each prompt and each prefix is computed once while someone needs it."""

    def __init__(self, decoder: Decoder, tickets: Iterable[Ticket], work: Work) -> None:
        self._decoder = decoder
        self._work = work
        self._live: dict[Key, Segment] = {}
        self._waiting: Counter[Key] = Counter()
        self._users: Counter[tuple[int, ...]] = Counter()
        for ticket in tickets:
            self._waiting[ticket.key] += 1
            self._users[ticket.key[0]] += 1

    def bytes_with(self, tickets: Iterable[Ticket]) -> int:
        """Memory of the live segments and those that the tickets would add."""
        keys = set(self._live)
        for ticket in tickets:
            keys |= {ticket.key, (ticket.key[0], ())}
        return self._decoder.token_bytes * sum(len(prefix or prompt) for prompt, prefix in keys)

    def of(self, tickets: Sequence[Ticket]) -> list[Segment]:
        """The tickets' segments, computing those that aren't there: prompts, then prefixes."""
        prompts = dict.fromkeys((t.key[0], ()) for t in tickets)
        self._compute([key for key in prompts if key not in self._live])
        prefixes = dict.fromkeys(t.key for t in tickets)
        for key in sorted(key for key in prefixes if key not in self._live):
            self._compute([key])
        return [self._live[t.key] for t in tickets]

    def _compute(self, keys: Sequence[Key]) -> None:
        jobs = [self._job(key) for key in keys]
        if not jobs:
            return
        self._work.prefilled_tokens += sum(len(job.tokens) - job.known for job in jobs)
        self._live.update(zip(keys, self._decoder.prefill(jobs), strict=True))

    def _job(self, key: Key) -> Prefill:
        """Compute the key's segment from the live one that shares most of its tokens."""
        prompt, prefix = key
        tokens = prefix or prompt
        parent = self._live[prompt, ()] if prefix else None
        best, known = None, 0
        for segment in self._live.values():
            if segment.parent is parent:
                shared = min(_shared(segment.tokens, tokens), len(tokens) - 1)
                if shared > known:
                    best, known = segment, shared
        return Prefill(tokens, parent, best, known)

    def placed(self, ticket: Ticket) -> None:
        """A row has its own copy of the ticket's prefix now."""
        self._waiting[ticket.key] -= 1

    def done(self, ticket: Ticket) -> None:
        """Nothing is needed for this ticket any more."""
        prompt = ticket.key[0]
        self._users[prompt] -= 1
        if self._users[prompt] == 0:
            for key in [key for key in self._live if key[0] == prompt]:
                del self._live[key]

    def drop_idle(self) -> None:
        """Let go of prefixes that no waiting request continues."""
        for key in [key for key in self._live if key[1] and self._waiting[key] == 0]:
            del self._live[key]


def _shared(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))


class Queue:
    """Requests that wait for a row, those of one prompt and prefix next to each other."""

    def __init__(self, decoder: Decoder, budget: int, max_rows: int, work: Work) -> None:
        self._decoder = decoder
        self._budget = budget
        self._max_rows = max_rows
        self._work = work
        self._tickets: deque[Ticket] = deque()

    def fill(self, tickets: Sequence[Ticket]) -> Segments:
        """Queue the tickets, each of which must fit alone."""
        sizes: dict[tuple[int, int, int], Ticket] = {}
        for ticket in tickets:
            prompt, prefix = ticket.key
            sizes.setdefault((len(prompt), len(prefix), ticket.shape.completion), ticket)
        for ticket in sizes.values():
            self._check_alone(ticket)
        order: dict[tuple[int, ...], dict[Key, list[Ticket]]] = {}
        for ticket in tickets:
            order.setdefault(ticket.key[0], {}).setdefault(ticket.key, []).append(ticket)
        for by_prefix in order.values():
            for same in by_prefix.values():
                self._tickets.extend(same)
        return Segments(self._decoder, tickets, self._work)

    def _check_alone(self, ticket: Ticket) -> None:
        alone = Segments(self._decoder, [], self._work).bytes_with([ticket])
        alone += self._decoder.row_bytes([ticket.shape])
        if alone > self._budget:
            raise UserError(
                f"a request of {ticket.shape.prompt} prompt tokens and max_tokens="
                f"{ticket.request.max_tokens} needs {alone:,} bytes of cache, more than "
                f"cache_bytes={self._budget:,}; raise cache_bytes or lower max_tokens."
            )

    def __len__(self) -> int:
        return len(self._tickets)

    def next_wave(self, rows: Sequence[Ticket], segments: Segments) -> list[Ticket]:
        """Take the tickets that fit beside the active rows."""
        wave = self._fitting(rows, segments)
        if not wave and not rows and self._tickets:
            segments.drop_idle()
            wave = self._fitting(rows, segments)
        return wave

    def reserve(self, rows: Sequence[Ticket], wave: Sequence[Ticket], segments: Segments) -> None:
        """Have the decoder make room for the rows and the wave, within the budget."""
        shapes = [t.shape for t in (*rows, *wave)]
        others = segments.bytes_with(wave)
        self._decoder.reserve(shapes, self._budget - others)
        total = self._decoder.reserved_bytes + others
        self._work.most_cache_bytes = max(self._work.most_cache_bytes, total)

    def _fitting(self, rows: Sequence[Ticket], segments: Segments) -> list[Ticket]:
        """The first tickets that fit; more tickets never need less memory."""
        free = min(self._max_rows - len(rows), len(self._tickets))
        first = list(islice(self._tickets, free))
        shapes = [t.shape for t in (*rows, *first)]

        def too_much(count: int) -> bool:
            need = self._decoder.row_bytes(shapes[: len(rows) + count])
            return need + segments.bytes_with(first[:count]) > self._budget

        fitting = free
        if free and too_much(free):
            fitting = bisect_left(range(1, free), True, key=too_much)
        return [self._tickets.popleft() for _ in range(fitting)]
