"""Processes that take training steps on demand, one for each side.

Each side has a process of its own: its memory is measured by itself, and neither side's heap
slows the other. Between its steps a process waits and computes nothing.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from harness import CLOCKS
from workloads import Workload, check_tokens, policy_of, trainer_of

STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Step:
    """What one step took: seconds on each clock, and the process's peak of memory so far."""

    seconds: Mapping[str, float]
    peak_gb: float


class Worker:
    """A process that has loaded the workload on one side; `step` takes a step in it.

    Args:
        side: "polyopt", "trl", or "trl-checkpointing" (which is TRL's default).
        work: Sizes.
        folder: The model.
    """

    def __init__(self, side: str, work: Workload, folder: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        arguments = (other, side, work, folder, torch.get_num_threads())
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        other.close()

    def step(self) -> Step:
        """Take one step.

        Raises:
            RuntimeError: The process failed or was killed.
        """
        try:
            self._pipe.send("step")
            answer = self._pipe.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self._process.join()
            code = self._process.exitcode
            raise RuntimeError(f"the worker ended with exit code {code} (out of memory?)") from None
        if isinstance(answer, str):
            raise RuntimeError(answer)
        found: Step = answer
        return found

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pipe.close()
        self._process.kill()
        self._process.join()


def _serve(pipe: Connection, side: str, work: Workload, folder: Path, threads: int) -> None:
    """Body of the process."""
    torch.set_num_threads(threads)
    try:
        if side == "polyopt":
            _serve_polyopt(pipe, work, folder)
        else:
            _serve_trl(pipe, work, folder, side)
    except Exception as error:
        pipe.send(f"{side}: {type(error).__name__}: {error}")


def _serve_polyopt(pipe: Connection, work: Workload, folder: Path) -> None:
    trainer = trainer_of(policy_of(str(folder)), work)
    while _asked(pipe):
        start = _now()
        result = trainer.step()
        took = _since(start)
        check_tokens(work, result.metrics["tokens/sampled"], "polyopt")
        pipe.send(took)


def _serve_trl(pipe: Connection, work: Workload, folder: Path, side: str) -> None:
    import trl_trainer

    checkpointing = side.endswith("checkpointing")
    start: dict[str, float] = {}

    def begin() -> bool:
        asked = _asked(pipe)
        start.update(_now())
        return asked

    def end(sampled: float) -> None:
        took = _since(start)
        check_tokens(work, sampled, "TRL")
        pipe.send(took)

    trl_trainer.train(work, folder, begin, end, checkpointing=checkpointing)


def _asked(pipe: Connection) -> bool:
    """Wait for the next request; False when there will be none."""
    try:
        pipe.recv()
    except EOFError:
        return False
    return True


def _now() -> dict[str, float]:
    return {name: read() for name, read in CLOCKS.items()}


def _since(start: Mapping[str, Any]) -> Step:
    return Step({name: value - start[name] for name, value in _now().items()}, peak_gb())


def peak_gb() -> float:
    """Peak resident memory of this process in GB (10^9 bytes).

    `ru_maxrss` is not used where Linux gives the number itself: a started process inherits the
    peak of the one that started it.
    """
    if STATUS.is_file():
        line = next(t for t in STATUS.read_text().splitlines() if t.startswith("VmHWM"))
        return int(line.split()[1]) * 1024 / 1e9
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def installed_trl() -> str | None:
    """Name and version of TRL, or None if it isn't there."""
    import importlib.metadata

    import trl_trainer

    try:
        return trl_trainer.name()
    except importlib.metadata.PackageNotFoundError:
        return None
