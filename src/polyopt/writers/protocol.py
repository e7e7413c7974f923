"""`MetricWriter`: what receives every metric of a run, under the names of `metrics.jsonl`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class RunStart:
    """What a writer is told when a run begins or goes on.

    Attributes:
        folder: The run folder; a writer may keep files of its own there.
        description: What `run.json` holds.
        kept: Points up to this step stand. A resumed run goes on from its checkpoint's step and
            writes later points again; -1 where no point stands.
        resumed: The run was started before.
    """

    folder: Path
    description: Mapping[str, Any]
    kept: int = -1
    resumed: bool = False


class MetricWriter(Protocol):
    """Receives a run's numbers: `polyopt.train(..., writers=[mine])`.

    A training step's metrics have the names of `metrics.jsonl`, an evaluation's those of
    `evals.jsonl` after `eval/` (`eval/pass@1`). Values that aren't finite are left out. What a
    writer raises is said once, and the run goes on without that writer.
    """

    def start(self, start: RunStart) -> None:
        """Called once, before the first point."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """One step's training metrics, or one evaluation's; steps never decrease."""

    def close(self, finished: bool) -> None:
        """Called once at the end; `finished` says whether the run came to its last step."""
