"""What to watch instead of the loss: the doctor's signs on a run under way, each said once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from polyopt.diagnosis.evidence import WINDOW, Evidence
from polyopt.diagnosis.signs import LIKELY, diagnose

__all__ = ["WINDOW", "Watch"]

FIRST, LAST, EVERY = 2 * WINDOW, 20 * WINDOW, WINDOW // 2
"""Steps that are kept of the run's start and of its present, and steps between two looks."""


@dataclass
class Watch:
    """Collects metrics and names each sign once, when it is first likely."""

    start: list[Mapping[str, Any]] = field(default_factory=list)
    present: list[Mapping[str, Any]] = field(default_factory=list)
    said: set[str] = field(default_factory=set)
    seen: int = 0

    def warnings(self, step: int, metrics: Mapping[str, float]) -> list[str]:
        """Signs that show for the first time at this step."""
        row = {"step": step, **metrics}
        kept = self.start if len(self.start) < FIRST else self.present
        kept.append(row)
        del self.present[:-LAST]
        self.seen += 1
        if self.seen < WINDOW or self.seen % EVERY:
            return []
        found = []
        for finding in diagnose(Evidence([*self.start, *self.present]), live=True):
            if finding.symptom.confidence >= LIKELY and finding.name not in self.said:
                self.said.add(finding.name)
                found.append(f"step {step}: {finding.warning}")
        return found
