"""Numbers as text for a terminal: sparklines, short numbers, durations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS = "_.-=+*%#"


def sparkline(values: Sequence[float], width: int, *, ascii_only: bool = False) -> str:
    """A row of blocks, one per bin of equally many values, scaled to the range of the bins.

    Values that aren't finite are left out; a constant series sits at middle height.
    """
    known = [value for value in values if math.isfinite(value)]
    if not known or width < 1:
        return ""
    bins = min(width, len(known))
    edges = [round(i * len(known) / bins) for i in range(bins + 1)]
    means = [sum(known[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(means), max(means)
    blocks = ASCII_BLOCKS if ascii_only else BLOCKS
    if high - low <= 1e-12 * max(1.0, abs(high)):
        return blocks[3] * bins
    top = len(blocks) - 1
    return "".join(blocks[round(top * (mean - low) / (high - low))] for mean in means)


def number(value: float | None) -> str:
    """Three significant digits, thousands separated, no exponent where it can be avoided."""
    if value is None:
        return "-"
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if size >= 1e7:
        return f"{value:.2e}"
    if size >= 1000:
        return f"{value:,.0f}"
    if size >= 100:
        return f"{value:.0f}" if value == round(value) else f"{value:.1f}"
    if value == round(value) and size < 100:
        return f"{value:.0f}"
    return f"{value:.3g}" if size >= 0.001 else f"{value:.1e}"


def share(value: float | None) -> str:
    """A share of one as a percentage."""
    if value is None or not math.isfinite(value):
        return number(value)
    return f"{100 * value:.1f}%" if abs(value) < 0.9995 else f"{100 * value:.0f}%"


def duration(seconds: float | None) -> str:
    """`45 s`, `12 min 05 s`, `3 h 20 min`."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
