"""Metrics as columns over steps: made, thinned for drawing, smoothed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polyopt.report.intervals import finite

Values = list[float | None]


@dataclass(frozen=True)
class Series:
    """Metrics by name over common steps; None where a value is missing or not finite.

    Attributes:
        steps: Training steps, ascending (of a bin: its last).
        columns: Values by metric name, each as long as `steps`.
        bin: Steps per point.
    """

    steps: list[int]
    columns: dict[str, Values]
    bin: int = 1


def columns(rows: Sequence[Mapping[str, Any]]) -> Series:
    """The numeric metrics of `metrics.jsonl` rows, in order of first appearance."""
    names = dict.fromkeys(name for row in rows for name in row if name != "step")
    values = {name: [finite(row.get(name)) for row in rows] for name in names}
    kept = {name: column for name, column in values.items() if any(v is not None for v in column)}
    return Series([int(row["step"]) for row in rows], kept)


def thin(series: Series, limit: int) -> Series:
    """At most `limit` points per metric: means over bins of rows (maxima of `*/max`)."""
    size = max(1, math.ceil(len(series.steps) / limit))
    if size == 1:
        return series
    edges = [*range(0, len(series.steps), size), len(series.steps)]
    spans = list(itertools.pairwise(edges))
    return Series(
        steps=[series.steps[end - 1] for _, end in spans],
        columns={
            name: [_pool(name, column[start:end]) for start, end in spans]
            for name, column in series.columns.items()
        },
        bin=size,
    )


def smooth(values: Sequence[float | None], span: float) -> Values:
    """Exponential moving average with weight `2 / (span + 1)` on the newest value, debiased.

    Missing values stay missing and leave the average as it was; span 1 changes nothing.
    """
    keep = 1 - 2 / (max(span, 1.0) + 1)
    total = weight = 0.0
    result: Values = []
    for value in values:
        if value is not None:
            total = keep * total + (1 - keep) * value
            weight = keep * weight + (1 - keep)
        result.append(None if value is None else total / weight)
    return result


def mean(values: Sequence[float | None]) -> float | None:
    """Mean of the values that are there; None if none is."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def rounded(value: float | None, digits: int) -> float | int | None:
    """A value with so many significant digits: shorter to write, whole numbers as integers."""
    if value is None:
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short == int(short) and abs(short) < 1e15 else short


def _pool(name: str, values: Sequence[float | None]) -> float | None:
    if name.endswith("/max"):
        return max((value for value in values if value is not None), default=None)
    return mean(values)
