"""`RunFollower`: a run folder's record, kept up to date without reading it again."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyopt.report.html import PAIR_BYTES, ROLLOUT_BYTES
from polyopt.report.intervals import finite
from polyopt.report.record import RunRecord, parse_object, read_about, sort_evals, step_of
from polyopt.report.rollout_sample import RolloutSample, count_lines, sample_groups, sample_pairs
from polyopt.report.series import Series, Values
from polyopt.watching.tail import Tail

Stamp = tuple[tuple[str, int, int], ...]


@dataclass
class GrowingSeries:
    """Metrics as columns over steps, row by row; of several rows for a step the last counts."""

    steps: list[int] = field(default_factory=list)
    columns: dict[str, Values] = field(default_factory=dict)

    def add(self, row: Mapping[str, Any]) -> None:
        """One more row; a row without a step is left out."""
        step = step_of(dict(row))
        if step is None:
            return
        at = bisect_left(self.steps, step)
        for name in row:
            if name != "step" and name not in self.columns:
                self.columns[name] = [None] * len(self.steps)
        if at == len(self.steps) or self.steps[at] != step:
            self.steps.insert(at, step)
            for column in self.columns.values():
                column.insert(at, None)
        for name, column in self.columns.items():
            column[at] = finite(row.get(name))

    def series(self) -> Series:
        """What there is so far, without columns that hold no number."""
        kept = {
            name: column
            for name, column in self.columns.items()
            if any(value is not None for value in column)
        }
        return Series(self.steps, kept)


class RunFollower:
    """What a run folder says, brought up to date by `look`.

    Lines of `metrics.jsonl` and `evals.jsonl` are read once. Rollouts are sampled anew when a step
    was logged: a bounded number of files, however long the run is.
    """

    def __init__(self, run: Path) -> None:
        self.run = run
        self.about: dict[str, Any] = {}
        self.metrics = GrowingSeries()
        self.evals: list[dict[str, Any]] = []
        self.groups, self.pairs = RolloutSample(), RolloutSample()
        self._unreadable: dict[str, int] = {}
        self._tails = {name: Tail(run / name) for name in ("metrics.jsonl", "evals.jsonl")}
        self._stamps: dict[str, Stamp] = {}
        self._counts: dict[tuple[str, int, int], int] = {}

    def look(self) -> bool:
        """Read what is new; whether anything was."""
        news = [self._look_at_about(), self._look_at_metrics(), self._look_at_evals()]
        return any([*news, self._look_at_groups(), self._look_at_pairs()])

    @property
    def record(self) -> RunRecord:
        """The run's small files, as `read_run` gives them (without the rows of metrics)."""
        return RunRecord(self.run, self.about, [], sort_evals(self.evals), dict(self._unreadable))

    def _look_at_about(self) -> bool:
        if not self._changed("run.json", [self.run / "run.json"]):
            return False
        self._unreadable.pop("run.json", None)
        self.about = read_about(self.run / "run.json", self._unreadable)
        return True

    def _look_at_metrics(self) -> bool:
        anew, rows = self._new_rows("metrics.jsonl")
        if anew:
            self.metrics = GrowingSeries()
        for row in rows:
            self.metrics.add(row)
        return anew or bool(rows)

    def _look_at_evals(self) -> bool:
        anew, rows = self._new_rows("evals.jsonl")
        if anew:
            self.evals = []
        self.evals += rows
        return anew or bool(rows)

    def _new_rows(self, name: str) -> tuple[bool, list[dict[str, Any]]]:
        anew, lines = self._tails[name].lines()
        if anew:
            self._unreadable.pop(name, None)
        rows = [row for line in lines if (row := parse_object(line)) is not None]
        if len(rows) < len(lines):
            self._unreadable[name] = self._unreadable.get(name, 0) + len(lines) - len(rows)
        return anew, rows

    def _look_at_groups(self) -> bool:
        files = sorted((self.run / "rollouts").glob("step-*.jsonl"))
        if not self._changed("groups", files):
            return False
        try:
            self.groups = sample_groups(self.run / "rollouts", ROLLOUT_BYTES, self._count)
        except FileNotFoundError:  # a resumed run is dropping files: look again later
            del self._stamps["groups"]
            return False
        return True

    def _look_at_pairs(self) -> bool:
        files = [self.run / "rollouts" / f"{phase}.jsonl" for phase in ("before", "after")]
        if not self._changed("pairs", files):
            return False
        self.pairs = sample_pairs(self.run / "rollouts", PAIR_BYTES)
        return True

    def _changed(self, what: str, files: list[Path]) -> bool:
        stamp = tuple(entry for path in files if (entry := _entry(path)) is not None)
        if stamp == self._stamps.get(what, ()):
            return False
        self._stamps[what] = stamp
        return True

    def _count(self, path: Path) -> int:
        """Lines of a file of rollouts, counted once."""
        entry = _entry(path)
        if entry is None:
            return 0
        if entry not in self._counts:
            self._counts[entry] = count_lines(path)
        return self._counts[entry]


def _entry(path: Path) -> tuple[str, int, int] | None:
    """What changes when a file does; None if there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return path.name, status.st_size, status.st_mtime_ns
