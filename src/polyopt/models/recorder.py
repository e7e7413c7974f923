"""Activations of tokens as they were sampled, kept for the update that follows.

An on-policy update runs the same tokens through the same weights as sampling did. Where the engine
keeps what the backward pass needs, the forward pass needn't be run again.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from polyopt.models.activations import Activations, LayerActivations
from polyopt.models.block_stack import BlockStack
from polyopt.models.packing import Rows
from polyopt.models.shared_prefix import Packed

Integers = npt.NDArray[np.int64]
Ids = tuple[int, ...]

TOLERANCE = 1e-3
"""Largest distance of recorded hidden states from the model's, relative to the largest number."""
CHECK_EVERY = 16
"""Versions of the weights after which recorded activations are compared with the model's again."""


class Fed(NamedTuple):
    """What a completion fed to the model: its tokens but the last, and their places."""

    tokens: Integers
    places: Integers


class Track(NamedTuple):
    """A completion that is recorded.

    Attributes:
        prompt: Its prompt.
        most: Most tokens that it feeds.
        begun: Steps that were taken before its first.
    """

    prompt: Ids
    most: int
    begun: int


class Taken(NamedTuple):
    """Tokens of a forward pass, and their places in the record."""

    tokens: Int[Tensor, " S"]
    places: slice


class Recorder:
    """A record of at most `most_tokens` tokens.

    The engine opens a *track* for each completion and takes places for its tokens as they are fed
    to the model; a track whose tokens may not fit is not opened. The trainer asks for rows by their
    tokens, whatever rewards, filters and selection did in between.

    Attributes:
        stack: The model.
        open: Whether sampled tokens are recorded now.
        version: Of the weights that they are to be sampled with.
        used: Tokens that are recorded.
        trusted: The recorded hidden states have been the model's own up to rounding.
    """

    def __init__(self, stack: BlockStack, model: nn.Module) -> None:
        self.stack = stack
        self._model = model
        self.open = False
        self.version = -1
        self.trusted = True
        self._checked: int | None = None
        self._mark: Hashable = None
        self.forget()

    def forget(self) -> None:
        """Nothing is known any more."""
        self.open = False
        self.activations: Activations | None = None
        self._capacity = 0
        self._mark = None
        self.used = self._reserved = 0
        self._prompts: dict[Ids, int] = {}
        self._tracks: list[Track] = []
        self._steps: list[tuple[Integers, Integers, Integers]] = []
        self._index: dict[Ids, dict[bytes, Fed]] = {}

    def begin(self, most_tokens: int, version: int) -> None:
        """Record from now on, at most this many tokens, under weights of this version."""
        self.forget()
        self._most_tokens = most_tokens
        self.version, self._mark = version, self._marked()
        self.open = True

    def end(self) -> None:
        """Record no more; what is there can be asked for."""
        self.open = False
        if not self._tracks or not self._steps:
            return
        tracks, tokens, places = (np.concatenate(parts) for parts in zip(*self._steps, strict=True))
        order = np.argsort(tracks, kind="stable")
        ends = np.cumsum(np.bincount(tracks, minlength=len(self._tracks)))[:-1]
        pairs = zip(np.split(tokens[order], ends), np.split(places[order], ends), strict=True)
        for track, (ids, at) in zip(self._tracks, pairs, strict=True):
            self._index.setdefault(track.prompt, {})[ids.tobytes()] = Fed(ids, at)

    def holds(self, version: int) -> bool:
        """Whether something is known that was computed with the present weights.

        Optimizers raise `version`; whoever writes to weights otherwise raises their counters.
        """
        known = self.trusted and bool(self._index) and self.version == version
        return known and self._mark == self._marked()

    def _marked(self) -> Hashable:
        return tuple((p.data_ptr(), p._version) for p in self._model.parameters())

    @property
    def due(self) -> bool:
        """Whether it is time to compare what is recorded with what the model computes."""
        return self._checked is None or self.version - self._checked >= CHECK_EVERY

    def check(self, recorded: Tensor, computed: Tensor) -> None:
        """Trust the record no longer if it isn't what the model computes, rounding apart."""
        self._checked = self.version
        gap = (recorded - computed).abs().max() / computed.abs().max()
        self.trusted = bool(gap <= TOLERANCE)

    # What the engine says.

    def make_room(self, tokens: int) -> None:
        """Have memory for so many tokens, if that isn't too many; the first call decides."""
        if self.activations is None:
            self._capacity = min(tokens, self._most_tokens)
            self.activations = self.stack.room_for(self._capacity)

    def take_prompts(self, prompts: Sequence[Ids]) -> Taken | None:
        """Room for new prompts whose tokens go through the model next; None if for none of them."""
        tokens: list[Tensor] = []
        first, start = 0, self.used
        for prompt in prompts:
            if self.open and prompt not in self._prompts and self._fits(len(prompt)):
                self._prompts[prompt] = self.used
                self.used += len(prompt)
                tokens.append(torch.arange(first, first + len(prompt)))
            first += len(prompt)
        return Taken(torch.cat(tokens), slice(start, self.used)) if tokens else None

    def write(self, taken: Taken, activations: LayerActivations, index: int) -> None:
        """Keep what a forward pass over the prompts gave in one layer."""
        assert self.activations is not None
        record = self.activations.layers[index]
        for field in fields(record):
            into, given = (getattr(each, field.name) for each in (record, activations))
            if into is not None:
                into[taken.places] = given.index_select(0, taken.tokens)

    def write_last(self, taken: Taken, stream: Float[Tensor, "S H"]) -> None:
        """Keep the stream after the last layer."""
        assert self.activations is not None
        self.activations.last[taken.places] = stream.index_select(0, taken.tokens)

    def track(self, prompt: Ids, most: int) -> int:
        """A track for a completion of up to `most` tokens, or -1."""
        if not (self.open and prompt in self._prompts and self._fits(most)):
            return -1
        self._reserved += most
        self._tracks.append(Track(prompt, most, len(self._steps)))
        return len(self._tracks) - 1

    def close(self, track: int) -> None:
        """The completion is over."""
        if track >= 0:
            known = self._tracks[track]
            self._reserved -= known.most - (len(self._steps) - known.begun)

    def take(self, tracks: Integers, tokens: Sequence[int] | Integers) -> Integers:
        """Places for the tokens that go through the model next, one of each track; -1 without."""
        places = np.full(len(tracks), -1, dtype=np.int64)
        live = np.flatnonzero(tracks >= 0)
        places[live] = np.arange(self.used, self.used + len(live))
        self.used += len(live)
        self._reserved -= len(live)
        ids = np.asarray(tokens, dtype=np.int64)
        self._steps.append((tracks[live], ids[live], places[live]))
        return places

    # What the trainer asks.

    def known(self, rows: Rows) -> Bool[Tensor, " N"]:
        """Rows of which all that the model is fed is recorded, or that feed it nothing."""
        return torch.tensor([places is not None for places in self._places(rows)])

    def of(self, rows: Rows, packed: Packed) -> Activations | None:
        """Activations of packed rows, None unless all of them are known.

        A backward pass uses them up, layer by layer: where gradients are wanted, the record is
        handed over.
        """
        record, found = self.activations, list(self._places(rows))
        if any(places is None for places in found):
            return None
        table = np.full(tuple(rows.input_ids.shape), -1, dtype=np.int64)
        for line, places in zip(table, found, strict=True):
            line[: len(places)] = places  # type: ignore[arg-type]
        at = torch.from_numpy(table)[packed.row, packed.position_ids[0]]
        if torch.is_grad_enabled():
            self.forget()
        return None if record is None else replace(record, places=at)

    def _places(self, rows: Rows) -> Iterator[Integers | None]:
        """Places of what each row feeds the model."""
        ids = rows.input_ids.numpy()
        for line, prompt, used in zip(ids, rows.prompt_lengths.tolist(), rows.fed(), strict=True):
            yield self._find(line[:prompt], line[prompt:used]) if used else line[:0]

    def _find(self, prompt: Integers, own: Integers) -> Integers | None:
        ids = tuple(prompt.tolist())
        fed = _beginning_with(own, self._index.get(ids, {}))
        if fed is None:
            return None
        start = self._prompts[ids]
        return np.concatenate([np.arange(start, start + len(ids)), fed.places[: len(own)]])

    def _fits(self, tokens: int) -> bool:
        return self.used + self._reserved + tokens <= self._capacity


def _beginning_with(own: Integers, known: Mapping[bytes, Fed]) -> Fed | None:
    """A completion that begins with these tokens; most often it is these tokens."""
    if fed := known.get(own.tobytes()):
        return fed
    return next((f for f in known.values() if np.array_equal(f.tokens[: len(own)], own)), None)
