"""Time per stage of a training step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Adds up seconds by name: `with clock("rollouts"): ...`; stages don't nest."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def lap(self) -> dict[str, float]:
        """Seconds since the last lap, as metrics `seconds/NAME`; starts the next one."""
        lap = {f"seconds/{name}": spent for name, spent in self.seconds.items()}
        self.seconds = {}
        return lap
