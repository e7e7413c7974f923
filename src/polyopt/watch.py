"""What to watch instead of the loss: the doctor's signs on a run under way, each said once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from polyopt.diagnosis.evidence import WINDOW, Evidence, LoggedRollout, logged_rollout
from polyopt.diagnosis.signs import LIKELY, diagnose
from polyopt.run_folder import finite

__all__ = ["WINDOW", "Memory", "Watch"]

Row = TypeVar("Row")

EVERY = WINDOW // 2
"""Steps between two looks."""


@dataclass
class Memory(Generic[Row]):
    """The first and the last rows of a run, however long it is."""

    first: int
    last: int
    start: list[Row] = field(default_factory=list)
    present: list[Row] = field(default_factory=list)

    def add(self, row: Row) -> None:
        """Keep a row; one of the middle is forgotten for it if need be."""
        kept = self.start if len(self.start) < self.first else self.present
        kept.append(row)
        del self.present[: -self.last]

    def rows(self) -> list[Row]:
        """What is kept, in order."""
        return [*self.start, *self.present]


@dataclass
class Watch:
    """Collects what a run logs and names each sign once, when it is first likely.

    The signs, and what they are given, are those of `polyopt doctor`; of long runs the middle is
    left out.

    Attributes:
        about: What `run.json` holds.
        metrics: Rows of `metrics.jsonl`.
        rollouts: Logged rollouts.
        evals: Rows of `evals.jsonl`.
        said: Names of the signs that were said.
        seen: Steps so far.
    """

    about: Mapping[str, Any] = field(default_factory=dict)
    metrics: Memory[Mapping[str, Any]] = field(
        default_factory=lambda: Memory(2 * WINDOW, 20 * WINDOW)
    )
    rollouts: Memory[LoggedRollout] = field(default_factory=lambda: Memory(256, 512))
    evals: list[Mapping[str, Any]] = field(default_factory=list)
    said: set[str] = field(default_factory=set)
    seen: int = 0

    def remember(self, run: Evidence) -> None:
        """Take in what a run that is resumed has logged already."""
        for row in run.metrics:
            self.metrics.add(row)
        for rollout in run.rollouts:
            self.rollouts.add(rollout)
        self.evals += run.evals
        self.seen = len(run.metrics)

    def saw_evaluation(self, row: Mapping[str, Any]) -> None:
        """Take in a held-out evaluation."""
        self.evals.append(finite(row))

    def saw_rollouts(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take in rollouts as they are logged."""
        for row in rows:
            self.rollouts.add(logged_rollout(finite(row)))

    def warnings(self, step: int, metrics: Mapping[str, float]) -> list[str]:
        """Signs that show for the first time at this step."""
        self.metrics.add(finite({"step": step, **metrics}))
        self.seen += 1
        if self.seen < WINDOW or self.seen % EVERY:
            return []
        return [f"step {step}: {line}" for line in self.last_words()]

    def record(self) -> Evidence:
        """The run so far, as `polyopt doctor` would read it from the run folder."""
        return Evidence(self.metrics.rows(), self.evals, self.rollouts.rows(), self.about)

    def last_words(self) -> list[str]:
        """Signs that show by now and weren't said yet."""
        found = []
        for finding in diagnose(self.record()):
            if finding.symptom.confidence >= LIKELY and finding.name not in self.said:
                self.said.add(finding.name)
                found.append(finding.warning)
        return found
