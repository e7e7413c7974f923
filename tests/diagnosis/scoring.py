"""Precision and recall of the doctor over runs whose sickness is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from polyopt.diagnosis import diagnose, read_evidence
from polyopt.diagnosis.live import LiveDoctor
from polyopt.diagnosis.signs import LIKELY


@dataclass(frozen=True)
class Case:
    """A run folder, what must be found in it, and what may be found as a consequence."""

    name: str
    path: Path
    expected: frozenset[str] = frozenset()
    consequences: frozenset[str] = frozenset()


@dataclass
class Score:
    """Counts over runs; a finding counts from a confidence of 0.5 on."""

    hits: int = 0
    allowed: int = 0
    misses: list[str] = field(default_factory=list)
    false: list[str] = field(default_factory=list)
    runs: int = 0

    @property
    def recall(self) -> float:
        """Share of the sicknesses that were found by name."""
        return self.hits / max(self.hits + len(self.misses), 1)

    @property
    def precision(self) -> float:
        """Share of the findings that are the sickness; its listed consequences aren't counted."""
        return self.hits / max(self.hits + len(self.false), 1)

    @property
    def strict_precision(self) -> float:
        """The same with consequences counted as false."""
        return self.hits / max(self.hits + len(self.false) + self.allowed, 1)

    def line(self, name: str) -> str:
        """A row of the table in docs/doctor.md."""
        return (
            f"| {name} | {self.runs} | {self.hits + len(self.misses)} | {self.hits} | "
            f"{len(self.false)} | {self.allowed} | {self.precision:.3f} | "
            f"{self.strict_precision:.3f} | {self.recall:.3f} |"
        )


def said_live(path: Path) -> set[str]:
    """Names of the signs that the progress display says while a run goes on, and at its end."""
    run = read_evidence(path)
    doctor = LiveDoctor(run.about)
    for row in run.metrics:
        step = int(row["step"])
        for rollout in run.rollouts:
            if rollout.step == step or (step == 1 and rollout.phase == "before"):
                doctor.rollouts.add(rollout)
        doctor.evals += [e for e in run.evals if e["step"] == step or e["step"] == step - 1 == 0]
        doctor.warnings(step, {name: value for name, value in row.items() if name != "step"})
    doctor.last_words()
    return doctor.said


def findings(path: Path) -> set[str]:
    """Names of the findings of a run that count."""
    found = diagnose(read_evidence(path))
    return {f.name for f in found if f.symptom.confidence >= LIKELY}


def score(cases: Iterable[Case], look: Callable[[Path], set[str]] = findings) -> Score:
    """Look at every run."""
    total = Score()
    for case in cases:
        found = look(case.path)
        total.runs += 1
        total.hits += len(found & case.expected)
        total.misses += [f"{case.name}: {name}" for name in sorted(case.expected - found)]
        extra = found - case.expected
        total.allowed += len(extra & case.consequences)
        total.false += [f"{case.name}: {name}" for name in sorted(extra - case.consequences)]
    return total
