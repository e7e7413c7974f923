"""`Evidence`: what a run's folder (or a run under way) says, as signs read it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from polyopt.report.record import read_objects, read_run

WINDOW = 10
"""Least steps for a change to be judged, and steps over which metrics are averaged (`width`)."""


@dataclass(frozen=True)
class LoggedRollout:
    """A row of `rollouts/*.jsonl`, as far as signs read it.

    Attributes:
        step: Training step.
        phase: `train`, `before` or `after`.
        prompt_id: Id of the prompt.
        prompt: Its text.
        completion: The completion's text.
        accuracy: 1 is right; None where nobody could say.
        terms: Reward terms by name.
        finish: `stop` or `length`.
        tokens: Token texts of the completion.
        mask: 1 at tokens that the policy sampled.
        credited: Whether any token has an advantage other than 0; None where none was logged.
    """

    step: int
    phase: str
    prompt_id: str
    prompt: str
    completion: str
    accuracy: float | None = None
    terms: Mapping[str, float] = field(default_factory=dict)
    finish: str = "stop"
    tokens: Sequence[str] = ()
    mask: Sequence[int] = ()
    credited: bool | None = None

    @property
    def length(self) -> int:
        """Sampled tokens."""
        return sum(self.mask) if self.mask else len(self.tokens)

    @property
    def right(self) -> bool:
        """Judged right."""
        return self.accuracy is not None and self.accuracy >= 1


@dataclass(frozen=True)
class Change:
    """A metric over the first and the last window of a run.

    Attributes:
        early: Mean over the first window.
        late: Mean over the last one.
        z: Their difference in standard errors, from the scatter between steps.
    """

    early: float
    late: float
    z: float

    @property
    def gain(self) -> float:
        """How much it rose."""
        return self.late - self.early

    @property
    def ratio(self) -> float:
        """The last window over the first; infinite from 0."""
        if self.early == 0:
            return math.inf if self.late > 0 else 1.0
        return self.late / self.early


def rose(change: Change | None, least: float = 0.05) -> bool:
    """Whether a metric rose by more than `least`, and by more than chance explains."""
    return change is not None and change.gain > least and change.z > 2


@dataclass(frozen=True)
class Evidence:
    """A run's record.

    Attributes:
        metrics: Rows of `metrics.jsonl`, ascending by step.
        evals: Rows of `evals.jsonl`, ascending.
        rollouts: Logged rollouts, ascending by step.
        about: `run.json`; empty if unknown.
        unreadable: Lines that aren't JSON objects, by file name.
    """

    metrics: Sequence[Mapping[str, Any]]
    evals: Sequence[Mapping[str, Any]] = ()
    rollouts: Sequence[LoggedRollout] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    unreadable: Mapping[str, int] = field(default_factory=dict)

    def course(self, name: str) -> list[float]:
        """The finite values of a metric, in order of steps."""
        found = (row.get(name) for row in self.metrics)
        return [float(v) for v in found if known(v)]

    def steps(self) -> tuple[int, int]:
        """First and last step."""
        if not self.metrics:
            return 0, 0
        return int(self.metrics[0]["step"]), int(self.metrics[-1]["step"])

    def late_steps(self) -> tuple[int, int]:
        """First and last step of the last window."""
        count = width(len(self.metrics))
        return (int(self.metrics[-count]["step"]), self.steps()[1]) if self.metrics else (0, 0)

    def late(self, name: str) -> float | None:
        """Mean of a metric over the last window; None if it was never logged."""
        values = self.course(name)
        return mean(values[-width(len(values)) :]) if values else None

    def change(self, name: str, least: int = WINDOW) -> Change | None:
        """A metric's first and last window; None with fewer than `least` values."""
        values = self.course(name)
        if len(values) < least:
            return None
        count = width(len(values))
        first, last = values[:count], values[-count:]
        error = math.sqrt((variance(first) + variance(last)) / count)
        gain = mean(last) - mean(first)
        z = gain / error if error > 0 else math.copysign(math.inf, gain) if gain else 0.0
        return Change(mean(first), mean(last), z)

    def success(self) -> str:
        """The metric that says how well the policy does: accuracy, else the reward."""
        return "accuracy" if self.course("accuracy") else "reward/mean"

    def solved(self, share: float = 0.9) -> bool:
        """Whether at least this share of the last rollouts is right."""
        accuracy = self.late("accuracy")
        return accuracy is not None and accuracy >= share

    def number(self, name: str, slot: str | None = None) -> Any:
        """A number of the recipe's parts by its name, such as `max_grad_norm`; None if unknown.

        Args:
            name: Of the number.
            slot: Of the part that has it; by default the first part that has such a number.
        """
        for row in self.about.get("pipeline", ()):
            if name in row.get("numbers", {}) and slot in (None, row.get("slot")):
                return row["numbers"][name]
        return None

    def part(self, slot: str) -> str | None:
        """The part in a slot of the recipe; None if unknown."""
        for row in self.about.get("pipeline", ()):
            if row.get("slot") == slot:
                return str(row.get("part"))
        return None

    def trained(self) -> list[LoggedRollout]:
        """Logged rollouts of training steps."""
        return [row for row in self.rollouts if row.phase == "train"]


def width(count: int) -> int:
    """Steps in a window: a tenth of the run; of a short one 10, a sixth, or 5, whatever is least.

    Short runs change fast, so a wide first window would already hold what changed.
    """
    return max(1, count // 10, min(WINDOW, max(count // 6, min(count // 2, 5))))


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean of at least one value."""
    return math.fsum(values) / len(values)


def variance(values: Sequence[float]) -> float:
    """Unbiased variance; 0 of fewer than two values."""
    if len(values) < 2:
        return 0.0
    centre = mean(values)
    return math.fsum((v - centre) ** 2 for v in values) / (len(values) - 1)


def read_evidence(path: Path) -> Evidence:
    """Read a run folder; whatever is missing is left out.

    Raises:
        UserError: It is no run folder.
    """
    record = read_run(path)
    unreadable = dict(record.unreadable)
    rollouts = []
    for file in sorted((path / "rollouts").glob("*.jsonl")):
        for row in read_objects(file):
            if row is None:
                unreadable[file.name] = unreadable.get(file.name, 0) + 1
            else:
                rollouts.append(logged_rollout(row))
    rollouts.sort(key=lambda row: row.step)
    return Evidence(record.metrics, record.evals, rollouts, record.about, unreadable)


def logged_rollout(row: Mapping[str, Any]) -> LoggedRollout:
    """A row of a rollouts file; missing fields stay empty."""
    advantages = row.get("advantages")
    accuracy = row.get("accuracy")
    return LoggedRollout(
        step=int(row.get("step") or 0),
        phase=str(row.get("phase", "train")),
        prompt_id=str(row.get("prompt_id", "")),
        prompt=str(row.get("prompt", "")),
        completion=str(row.get("completion", "")),
        accuracy=float(accuracy) if known(accuracy) else None,
        terms={k: v for k, v in (row.get("terms") or {}).items() if known(v)},
        finish=str(row.get("finish", "stop")),
        tokens=tuple(row.get("tokens") or ()),
        mask=tuple(row.get("mask") or ()),
        credited=any(advantages) if advantages is not None else None,
    )


def known(value: Any) -> TypeGuard[float]:
    """Whether a logged value is a finite number; unknown ones are NaN in memory, null in files."""
    return isinstance(value, int | float) and math.isfinite(value)


def halves(rows: Sequence[LoggedRollout]) -> tuple[list[LoggedRollout], list[LoggedRollout]]:
    """Rollouts of the first and of the second half of the steps that were logged."""
    steps = [step for step, _ in itertools.groupby(row.step for row in rows)]
    middle = steps[len(steps) // 2] if len(steps) > 1 else math.inf
    return [r for r in rows if r.step < middle], [r for r in rows if r.step >= middle]
