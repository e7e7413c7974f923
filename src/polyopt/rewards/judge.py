"""Verifiers in a process of their own, for those that may hang or evaluate what the model wrote."""

from __future__ import annotations

import atexit
import functools
import logging
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from polyopt.errors import UserError

logger = logging.getLogger(__name__)

WORKER = Path(__file__).with_name("judge_worker.py")


class GaveUp(Exception):
    """The judge ran out of time or memory on one question."""


class Judge:
    """A verifier that runs elsewhere: call it with the arguments of one question.

    Safe from any thread. A question that takes longer than `seconds` costs the
    process, not the run; the next question starts another.

    Args:
        file: Python file that imports nothing of polyopt.
        function: Name in that file; called with `setup`, it returns the verifier.
        setup: Arguments that make the verifier.
        seconds: Time allowed to one question.
    """

    def __init__(
        self, file: Path, function: str, setup: tuple[Any, ...] = (), *, seconds: float = 5.0
    ) -> None:
        self.file, self.function, self.setup, self.seconds = file, function, setup, seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._warned = False

    def __call__(self, *question: Any) -> Any:
        """The verifier's judgement.

        Raises:
            GaveUp: The question took too long, or killed the process.
            UserError: The verifier can't be started.
        """
        with self._lock:
            process = self._running()
            try:
                self._send(process, question)
                return self._receive(process)
            except (EOFError, BrokenPipeError, pickle.UnpicklingError) as error:
                self.close()
                self._warn()
                raise GaveUp(f"no judgement within {self.seconds:g} s") from error
            except BaseException:
                self.close()  # an interrupt between question and answer leaves the pipe out of step
                raise

    def close(self) -> None:
        """End the process, if it is ours and there is one."""
        if self._process is not None and self._owner == os.getpid():
            self._process.kill()
            self._process.communicate()
        self._process = None

    def _running(self) -> subprocess.Popen[bytes]:
        usable = self._process is not None and self._owner == os.getpid()
        if self._process is None or not usable or self._process.poll() is not None:
            self._process, self._owner = self._start(), os.getpid()
        return self._process

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, str(WORKER), str(self.file), self.function],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONSAFEPATH": "1"},
            start_new_session=True,  # Ctrl-C is for the run, which then closes the pipe
        )
        self._send(process, (self.seconds, self.setup))
        try:
            failure = self._receive(process)
        except EOFError:
            failure = "it ended before it was ready"
        if failure is not None:
            process.kill()
            process.communicate()
            raise UserError(
                f"the verifier in {self.file.name} didn't start: {failure}. Check the installation "
                "of the package it uses: pip install 'polyopt[tasks]'."
            )
        return process

    def _warn(self) -> None:
        if not self._warned:
            logger.warning(
                "the verifier in %s gave up on an answer after %g s or too much memory; such "
                "answers count as wrong (said once).",
                self.file.name,
                self.seconds,
            )
        self._warned = True

    @staticmethod
    def _send(process: subprocess.Popen[bytes], value: Any) -> None:
        assert process.stdin is not None
        process.stdin.write(pickle.dumps(value))
        process.stdin.flush()

    @staticmethod
    def _receive(process: subprocess.Popen[bytes]) -> Any:
        assert process.stdout is not None
        return pickle.load(process.stdout)


@functools.cache
def shared_judge(file: Path, function: str, setup: bytes = b"") -> Judge:
    """The one judge of this process for a verifier; `setup` is the pickled tuple of arguments."""
    judge = Judge(file, function, pickle.loads(setup) if setup else ())
    atexit.register(judge.close)
    return judge
