"""Completions while they are sampled: lines of arrays, to which each step adds a column."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from jaxtyping import Float
from torch import Tensor

from polyopt.engines.drawing import draw
from polyopt.engines.protocol import Sample, SampleRequest
from polyopt.engines.stopping import Decode, Ending
from polyopt.engines.streams import uniforms_of_all

Integers = npt.NDArray[np.int64]


class Completions:
    """Each completion has a line, from its first draw to its sample; lines are used again.

    Columns are the new tokens: a request's prefix takes none. Only a request with stop strings
    costs work in Python at each token.

    Args:
        requests: All that will be sampled.
        lines: Most completions at a time.
        decode: Text of token ids, for stop strings.
        version: Weights version that samples.
    """

    def __init__(
        self, requests: Sequence[SampleRequest], lines: int, decode: Decode, version: int
    ) -> None:
        self._decode, self._version = decode, version
        lines = min(lines, len(requests))
        columns = max((new_tokens(request) for request in requests), default=0)
        stop_ids = max((len(request.stop_ids) for request in requests), default=0)
        self._free = list(reversed(range(lines)))
        self._requests = np.empty(lines, object)
        self._distributions = np.empty(lines, object)
        self._endings: dict[int, Ending] = {}
        self._entropy_asked = np.zeros(lines, bool)
        self._stop_ids = np.empty((lines, stop_ids), np.int64)
        self._most = np.empty(lines, np.int64)
        self._count = np.empty(lines, np.int64)
        self._stopped = np.empty(lines, bool)
        self._uniforms = np.empty((lines, columns))
        self._tokens = np.empty((lines, columns), np.int64)
        self._logp = np.empty((lines, columns))
        self._entropy = np.empty((lines, columns))

    def open(self, requests: Sequence[SampleRequest]) -> Integers:
        """Lines for new completions."""
        lines = np.array([self._free.pop() for _ in requests], np.int64)
        self._requests[lines] = requests
        self._distributions[lines] = [request.distribution for request in requests]
        self._entropy_asked[lines] = [request.entropy for request in requests]
        self._most[lines] = most = [new_tokens(request) for request in requests]
        self._count[lines] = 0
        draws = uniforms_of_all(
            [request.seed for request in requests],
            [len(request.prefix) for request in requests],
            most,
        )
        self._uniforms[lines, : draws.shape[1]] = draws
        self._stop_ids[lines] = -1
        for line, request in zip(lines.tolist(), requests, strict=True):
            self._stop_ids[line, : len(request.stop_ids)] = list(request.stop_ids)
            if request.stop_strings:
                self._endings[line] = Ending(request, self._decode)
        return lines

    def draw(self, lines: Integers, logits: Float[Tensor, "R V"]) -> npt.NDArray[np.bool_]:
        """Draw one more token for each line from its logits; the lines that end with it."""
        new = lines, self._count[lines]
        drawn = draw(
            logits,
            self._uniforms[new],
            self._distributions[lines].tolist(),
            entropy=bool(self._entropy_asked[lines].any()),
        )
        tokens = drawn.tokens.cpu().numpy()
        self._tokens[new] = tokens
        self._logp[new] = drawn.logp.cpu().numpy()
        if drawn.entropy is not None:
            self._entropy[new] = drawn.entropy.cpu().numpy()
        self._count[lines] += 1
        self._stopped[lines] = stopped = self._stops(lines, tokens)
        full: npt.NDArray[np.bool_] = self._count[lines] == self._most[lines]
        return stopped | full

    def _stops(self, lines: Integers, tokens: Integers) -> npt.NDArray[np.bool_]:
        """Whether a stop id or string ends each line with its new token."""
        stopped: npt.NDArray[np.bool_] = (self._stop_ids[lines] == tokens[:, None]).any(1)
        if self._endings:
            for i, line in enumerate(lines.tolist()):
                if line in self._endings:
                    stopped[i] = self._endings[line].append(int(tokens[i])) == "stop"
        return stopped

    def last(self, lines: Integers) -> Integers:
        """The newest token of each line."""
        return self._tokens[lines, self._count[lines] - 1]

    def close(self, line: int) -> Sample:
        """The sample that the line has become; the line is free again."""
        self._free.append(line)
        self._endings.pop(line, None)
        request: SampleRequest = self._requests[line]
        new = slice(self._count[line])
        return Sample(
            request=request,
            tokens=tuple(self._tokens[line, new].tolist()),
            logp=tuple(self._logp[line, new].tolist()),
            finish="stop" if self._stopped[line] else "length",
            version=self._version,
            entropy=tuple(self._entropy[line, new].tolist()) if request.entropy else None,
        )


def new_tokens(request: SampleRequest) -> int:
    """Most tokens that can follow the request's prefix."""
    return request.max_tokens - len(request.prefix)
