"""When a completion is finished: stop ids, stop strings, the length limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from polyopt.engines.protocol import Finish, SampleRequest

Decode = Callable[[Sequence[int]], str]


class Ending:
    """Says after each token whether its request's completion, prefix included, is finished.

    Stop strings are looked for in the text of a window at the end of the completion, long enough
    to hold the longest of them, and a hit is confirmed on the whole text.
    """

    def __init__(self, request: SampleRequest, decode: Decode) -> None:
        self.request = request
        self._decode = decode
        self._tokens = list(request.prefix)
        self._start = 0
        self._longest = max(map(len, request.stop_strings), default=0)
        self._window = max(32, 4 * self._longest)

    def append(self, token: int) -> Finish | None:
        """Why the completion ends after one more token; None if it goes on."""
        self._tokens.append(token)
        return self.finish()

    def finish(self) -> Finish | None:
        """Why the completion ends after its last token; None if it goes on."""
        request, tokens = self.request, self._tokens
        if tokens and tokens[-1] in request.stop_ids:
            return "stop"
        if request.stop_strings and tokens and self._completes_stop_string(tokens):
            return "stop"
        return "length" if len(tokens) >= request.max_tokens else None

    def _completes_stop_string(self, tokens: Sequence[int]) -> bool:
        text = self._decode(tokens[self._start :])
        if self._holds_stop(text) and (self._start == 0 or self._holds_stop(self._decode(tokens))):
            return True
        candidate = len(tokens) - self._window
        # A window whose text is short (special tokens, half characters) is kept whole.
        if (
            candidate >= self._start + self._window
            and len(self._decode(tokens[candidate:])) >= self._longest + 8
        ):
            self._start = candidate
        return False

    def _holds_stop(self, text: str) -> bool:
        return any(stop in text for stop in self.request.stop_strings)
