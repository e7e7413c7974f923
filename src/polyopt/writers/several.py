"""`Writers`: all writers of a run, none of which can stop or change it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from polyopt.seeding import random_state, set_random_state
from polyopt.writers.protocol import MetricWriter, RunStart


class Writers:
    """Passes metrics on to every writer that still works.

    A writer that raises is dropped with one warning. The global random generators are put back
    after each call, so that the run's numbers don't depend on who listens.
    """

    def __init__(self, writers: Sequence[MetricWriter], warn: Callable[[str], None]) -> None:
        self.working = list(writers)
        self.warn = warn

    def start(self, start: RunStart) -> None:
        """Begin, before the first point."""
        self._each("start", lambda writer: writer.start(start))

    def step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """A training step's metrics."""
        self._write(step, finite_numbers(metrics))

    def evaluation(self, step: int, metrics: Mapping[str, Any]) -> None:
        """An evaluation's metrics; each is called `eval/NAME`."""
        found = finite_numbers(metrics)
        self._write(step, {f"eval/{name}": value for name, value in found.items()})

    def close(self, finished: bool) -> None:
        """End, after the last point."""
        self._each("close", lambda writer: writer.close(finished))
        self.working.clear()

    def _write(self, step: int, metrics: Mapping[str, float]) -> None:
        self._each(f"write step {step}", lambda writer: writer.write(step, metrics))

    def _each(self, doing: str, act: Callable[[MetricWriter], None]) -> None:
        for writer in list(self.working):
            before = random_state()
            try:
                act(writer)
            except Exception as error:
                self.working.remove(writer)
                self.warn(
                    f"{type(writer).__name__} could not {doing} ({type(error).__name__}: {error}); "
                    "the run goes on without it, and metrics.jsonl holds everything."
                )
            finally:
                set_random_state(before)


def finite_numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a row, but for its step."""
    return {
        name: float(value)
        for name, value in metrics.items()
        if name != "step" and isinstance(value, int | float) and math.isfinite(value)
    }
