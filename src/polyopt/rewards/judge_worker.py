"""The process in which verifiers run that may hang or evaluate what the model wrote.

A program of its own, started by `judge.py` as `python judge_worker.py FILE FUNCTION`; it imports
nothing of polyopt. It reads pickles from standard input and writes pickles to standard output:
first (seconds, arguments of FUNCTION), answered by None or the text of an error; then one tuple of
arguments a question, answered by the judgement. A question that takes longer than `seconds`
ends the process: the alarm's default action stops even C code, which no exception would.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import runpy
import signal
import sys

MEMORY_BYTES = 4 << 30
"""Address space allowed to the process: a runaway power or list fails instead of swapping."""


def main(file: str, function: str) -> None:
    """Answer questions until standard input closes."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a verifier prints must not end up among the answers
    questions = sys.stdin.buffer
    seconds, setup = pickle.load(questions)
    try:
        judge = runpy.run_path(file)[function](*setup)
    except Exception as error:
        _send(answers, f"{type(error).__name__}: {error}")
        return
    _limit_memory()
    _send(answers, None)
    with contextlib.suppress(EOFError):
        while True:
            arguments = pickle.load(questions)
            _alarm(seconds)
            judgement = judge(*arguments)
            _alarm(0)
            _send(answers, judgement)


def _send(stream: object, value: object) -> None:
    pickle.dump(value, stream)  # type: ignore[arg-type]
    stream.flush()  # type: ignore[attr-defined]


def _alarm(seconds: float) -> None:
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _limit_memory() -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
