"""`LiveDoctor`: the doctor's signs on a run under way, each said once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from polyopt.diagnosis.evidence import WINDOW, Evidence, LoggedRollout, logged_rollout
from polyopt.diagnosis.signs import LIKELY, Finding, diagnose
from polyopt.run_folder import finite

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
class LiveDoctor:
    """Collects what a run logs and names each sign once, when it is likely at two looks in a row.

    The signs, and what they are given, are those of `polyopt doctor`; of long runs the middle is
    left out.

    Attributes:
        about: What `run.json` holds.
        metrics: Rows of `metrics.jsonl`.
        rollouts: Logged rollouts.
        evals: Rows of `evals.jsonl`.
        likely: Names of the signs that were likely at the last look.
        said: Names of the signs that were said.
        seen: Steps so far.
    """

    about: Mapping[str, Any] = field(default_factory=dict)
    metrics: Memory[Mapping[str, Any]] = field(
        default_factory=lambda: Memory(2 * WINDOW, 20 * WINDOW)
    )
    rollouts: Memory[LoggedRollout] = field(default_factory=lambda: Memory(256, 512))
    evals: list[Mapping[str, Any]] = field(default_factory=list)
    likely: set[str] = field(default_factory=set)
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
        """What is to be said at this step."""
        self.metrics.add(finite({"step": step, **metrics}))
        self.seen += 1
        if self.seen < WINDOW or self.seen % EVERY:
            return []
        found = self._found()
        before, self.likely = self.likely, {finding.name for finding in found}
        return [f"step {step}: {line}" for line in self._say(found, before)]

    def last_words(self) -> list[str]:
        """What the doctor finds at the end of the run and wasn't said yet."""
        found = self._found()
        return self._say(found, {finding.name for finding in found})

    def record(self) -> Evidence:
        """The run so far, as `polyopt doctor` would read it from the run folder."""
        return Evidence(self.metrics.rows(), self.evals, self.rollouts.rows(), self.about)

    def _found(self) -> list[Finding]:
        return [f for f in diagnose(self.record()) if f.symptom.confidence >= LIKELY]

    def _say(self, found: Iterable[Finding], sure: set[str]) -> list[str]:
        """Warnings of the sure findings that weren't said yet; now they are."""
        new = [f for f in found if f.name in sure and f.name not in self.said]
        self.said |= {finding.name for finding in new}
        return [finding.warning for finding in new]
