"""Before against after: two rates with intervals, and the interval of their difference."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Estimate:
    """A value with its interval; the ends are None where none was logged."""

    value: float
    low: float | None = None
    high: float | None = None


def estimate(row: Mapping[str, Any], name: str) -> Estimate | None:
    """`NAME`, `NAME/low` and `NAME/high` of a logged row; None without a finite value."""
    value = finite(row.get(name))
    if value is None:
        return None
    return Estimate(value, finite(row.get(f"{name}/low")), finite(row.get(f"{name}/high")))


def difference(before: Estimate, after: Estimate) -> Estimate:
    """`after - before`, with the interval that the two intervals imply if independent.

    Newcombe's hybrid score interval (Statistics in Medicine 17, 1998, method 10, written for any
    pair of intervals): `d - sqrt((a - low_a)^2 + (high_b - b)^2)` below, mirrored above. The
    same prompts before and after usually agree more than independent ones, so the true interval
    is narrower.
    """
    change = after.value - before.value
    if before.low is None or before.high is None or after.low is None or after.high is None:
        return Estimate(change)
    down = math.hypot(after.value - after.low, before.high - before.value)
    up = math.hypot(after.high - after.value, before.value - before.low)
    return Estimate(change, change - down, change + up)


def rate_names(*rows: Mapping[str, Any]) -> list[str]:
    """Names of the rates in evaluation rows (`pass@1`, `avg@8`, ...): pass@1 first, by k."""
    names = {key for row in rows for key in row if "@" in key and "/" not in key}
    return sorted(names, key=_rate_order)


def finite(value: object) -> float | None:
    """A logged value as a finite float, or None: booleans count as 0 and 1, text as nothing."""
    if isinstance(value, bool | int | float):
        try:
            as_float = float(value)
        except OverflowError:
            return None
        return as_float if math.isfinite(as_float) else None
    return None


def _rate_order(name: str) -> tuple[int, int, str]:
    kind, _, k = name.partition("@")
    kinds = {"pass": 0, "avg": 1, "maj": 2}
    return kinds.get(kind, 3), int(k) if k.isdigit() else 0, name
