"""`RunScore`: what a finished run counts for in a comparison."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyopt.comparison.cells import cell_runs
from polyopt.comparison.statistics import Scores
from polyopt.errors import UserError
from polyopt.report.intervals import finite
from polyopt.report.record import RunRecord, read_run, step_of
from polyopt.report.series import Series, Values, columns

RATE = "pass@1"


@dataclass(frozen=True)
class RunScore:
    """One run.

    Attributes:
        name: Its expression, and its settings where these differ between the runs.
        task: Its task.
        seed: Its seed.
        path: Its folder.
        final: Held-out pass@1 after the last step; None without evaluation.
        area: Area under the curve of training accuracy, per step; None if it wasn't logged.
        tokens: Tokens sampled in training.
        seconds: Seconds in training steps.
        series: Metrics over steps.
    """

    name: str
    task: str
    seed: int
    path: Path
    final: float | None
    area: float | None
    tokens: float
    seconds: float
    series: Series


def read_scores(paths: Sequence[Path], names: Sequence[str] | None = None) -> list[RunScore]:
    """Read finished runs; a comparison's folder stands for all its finished cells.

    Args:
        paths: Run folders.
        names: What to call each; by default its expression, with the settings in which runs of
            one expression differ.

    Raises:
        UserError: A folder holds no run, a run isn't finished, or two are the same run.
    """
    folders = [run for path in paths for run in _expanded(path)]
    records = [read_run(path) for path in folders]
    for record in records:
        _check_finished(record)
    names = _names(records) if names is None else names
    scores = [_score(record, name) for record, name in zip(records, names, strict=True)]
    seen: dict[tuple[str, str, int], Path] = {}
    for score in scores:
        key = (score.name, score.task, score.seed)
        if key in seen:
            raise UserError(
                f"{score.path} repeats {seen[key]}: {score.name} on {score.task} with seed "
                f"{score.seed}. Leave one of the two out."
            )
        seen[key] = score.path
    return scores


def by_task(scores: Sequence[RunScore], value: Callable[[RunScore], float | None]) -> Scores:
    """A value of the runs by task and seed, without those that lack it."""
    found: dict[str, dict[int, float]] = {}
    for score in scores:
        number = value(score)
        if number is not None:
            found.setdefault(score.task, {})[score.seed] = number
    return found


def area_per_step(steps: Sequence[int], values: Values) -> float | None:
    """Trapezoids under a curve over the steps it spans; a single point is its own area."""
    known = [(s, v) for s, v in zip(steps, values, strict=True) if v is not None]
    if not known:
        return None
    if len(known) == 1:
        return known[0][1]
    pairs = itertools.pairwise(known)
    total = sum((s2 - s1) * (v1 + v2) / 2 for (s1, v1), (s2, v2) in pairs)
    return total / (known[-1][0] - known[0][0])


def _expanded(path: Path) -> list[Path]:
    if not (path / "comparison.json").is_file():
        return [path]
    found = cell_runs(path)
    if not found:
        raise UserError(f"{path} is a comparison without a finished cell.")
    return found


def _check_finished(record: RunRecord) -> None:
    planned = record.about.get("steps")
    done = (step_of(record.metrics[-1]) if record.metrics else 0) or 0
    phases = {row.get("phase") for row in record.evals}
    if (isinstance(planned, int) and done < planned) or phases & {"before", "after"} == {"before"}:
        raise UserError(
            f"{record.path} isn't finished (step {done} of {planned}). Continue it with "
            f"`polyopt train --resume {record.path}`, or leave it out."
        )


def _score(record: RunRecord, name: str) -> RunScore:
    series = columns(record.metrics)
    last: Mapping[str, Any] = next(
        (row for row in reversed(record.evals) if row.get("phase") != "before"), {}
    )
    return RunScore(
        name=name,
        task=str(record.about.get("task", "")),
        seed=int(record.about.get("seed", 0)),
        path=record.path,
        final=finite(last.get(RATE)),
        area=area_per_step(
            series.steps, series.columns.get("accuracy", [None] * len(series.steps))
        ),
        tokens=_total(series, "tokens/sampled"),
        seconds=_total(series, "seconds/step"),
        series=series,
    )


def _total(series: Series, name: str) -> float:
    return sum(value for value in series.columns.get(name, []) if value is not None)


def _names(records: Sequence[RunRecord]) -> list[str]:
    """Expressions; settings that differ between runs of one expression are told."""
    settings = [_settings(record.about) for record in records]
    names = []
    for record, own in zip(records, settings, strict=True):
        rivals = [s for r, s in zip(records, settings, strict=True) if r.title == record.title]
        keys = sorted({key for rival in rivals for key in rival})
        told = [f"{k}={own.get(k, 'default')}" for k in keys if len({s.get(k) for s in rivals}) > 1]
        names.append(f"{record.title} ({', '.join(told)})" if told else record.title)
    return names


def _settings(about: Mapping[str, Any]) -> dict[str, str]:
    arguments = about.get("arguments") or {}
    chosen = {key: about.get(key) for key in ("model", "steps")}
    chosen |= dict(arguments.get("overrides") or {}) | dict(arguments.get("model_options") or {})
    return {key: str(value) for key, value in chosen.items()}
