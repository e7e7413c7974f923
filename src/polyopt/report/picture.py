"""SVG by hand: a titled picture with panels, each with axes, lines, bands and error bars."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias
from xml.etree import ElementTree

from polyopt.report.intervals import Estimate
from polyopt.report.series import Values
from polyopt.report.sparkline import number

Attributes: TypeAlias = dict[str, str | float]

WIDTH, HEIGHT = 920, 400
MARGIN, TOP, BOTTOM, LEFT, GAP = 28, 104, 64, 46, 34
INK, MUTED, GRID, PAPER, BORDER = "#1d2024", "#666c73", "#e7e7e2", "#ffffff", "#d9d9d4"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"


class Picture:
    """A card with a title, a line of facts and a caption; panels stand side by side in it."""

    def __init__(self, title: str, facts: str, caption: str) -> None:
        size = {"width": str(WIDTH), "height": str(HEIGHT), "viewBox": f"0 0 {WIDTH} {HEIGHT}"}
        namespace = {"xmlns": "http://www.w3.org/2000/svg", "role": "img", "font-family": FONT}
        self.root = ElementTree.Element("svg", {**namespace, **size})
        _add(self.root, "title", text=title)
        frame: Attributes = {"x": 0.5, "y": 0.5, "width": WIDTH - 1, "height": HEIGHT - 1, "rx": 12}
        _add(self.root, "rect", frame | {"fill": PAPER, "stroke": BORDER})
        self._text(MARGIN, 36, _clipped(title, 70), size=19, weight=650)
        self._text(MARGIN, 57, _clipped(facts, 110), size=13, fill=MUTED)
        self._text(MARGIN, HEIGHT - 14, caption, size=11.5, fill=MUTED)

    def panel(self, i: int, n: int, label: str, *, share: bool) -> Panel:
        """The `i`-th of `n` panels."""
        width = (WIDTH - 2 * MARGIN - (n - 1) * GAP) / n
        left = MARGIN + i * (width + GAP)
        group = _add(self.root, "g")
        return Panel(group, left + LEFT, left + width, label, share=share)

    def legend(self, entries: Sequence[tuple[str, str]]) -> None:
        """Names with their colours, at the right of the facts."""
        style: Attributes = {"font-size": 13, "fill": INK, "text-anchor": "end"}
        line = _add(self.root, "text", style | {"x": WIDTH - MARGIN, "y": 57})
        for name, colour in entries:
            dot = _add(line, "tspan", {"fill": colour}, "\u25cf ")
            dot.tail = _legal(f"{name}\u2003")
        dot.tail = _legal(name)

    def text(self) -> str:
        """The picture as an SVG file's text."""
        return ElementTree.tostring(self.root, encoding="unicode") + "\n"

    def _text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float,
        fill: str = INK,
        weight: int = 400,
        anchor: str = "start",
    ) -> None:
        style: Attributes = {
            "font-size": size,
            "fill": fill,
            "font-weight": weight,
            "text-anchor": anchor,
        }
        _add(self.root, "text", style | {"x": x, "y": y}, text)


class Panel:
    """One pair of axes; call `scale` before drawing."""

    def __init__(
        self, group: ElementTree.Element, left: float, right: float, label: str, *, share: bool
    ) -> None:
        self.group, self.left, self.right = group, left, right
        self.top, self.bottom = float(TOP), float(HEIGHT - BOTTOM)
        self.label, self.share = label, share
        self.steps, self.values = (0.0, 1.0), (0.0, 1.0)

    def scale(
        self, steps: Sequence[float], values: Sequence[float], *, along: str = "step"
    ) -> None:
        """Choose the ranges that hold all data, and draw the axes; `along` names the lower."""
        self.steps = (min(steps, default=0), max(steps, default=1))
        low, high = min(values, default=0.0), max(values, default=1.0)
        room = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
        low, high = low - room, high + room
        if self.share:
            low, high = max(low, 0.0), min(high, 1.0)
        self.values = (low, high)
        for tick in ticks(low, high, 5):
            y = self._y(tick)
            ends: Attributes = {"x1": self.left, "x2": self.right, "y1": y, "y2": y, "stroke": GRID}
            _add(self.group, "line", ends)
            self._label(self.left - 8, y + 4, self._written(tick), anchor="end")
        for i, step in enumerate(whole for whole in ticks(*self.steps, 5) if whole == int(whole)):
            text, x = f"{int(step):,}", self._x(step)
            self._label(x, self.bottom + 18, text, "middle")
            if i == 0:
                self._label(x - 4 * len(text) - 6, self.bottom + 18, along, "end")
        self._label(self.left - 38, self.top - 6, self.label, fill=INK, weight=600)

    def line(self, steps: Sequence[float], values: Values, colour: str) -> None:
        """A curve; missing values are gaps."""
        style: Attributes = {"fill": "none", "stroke": colour, "stroke-width": 2.2}
        joins: Attributes = {"stroke-linejoin": "round", "stroke-linecap": "round"}
        _add(self.group, "path", {"d": self._path(steps, values)} | style | joins)

    def band(self, steps: Sequence[float], low: Values, high: Values, colour: str) -> None:
        """A tinted area between two curves."""
        known = [
            (self._x(step), self._y(a), self._y(b))
            for step, a, b in zip(steps, low, high, strict=True)
            if a is not None and b is not None
        ]
        if len(known) < 2:
            return
        there = [f"{x:.1f} {b:.1f}" for x, _, b in known]
        back = [f"{x:.1f} {a:.1f}" for x, a, _ in reversed(known)]
        path = f"M{'L'.join(there + back)}Z"
        _add(self.group, "path", {"d": path, "fill": colour, "fill-opacity": 0.14})

    def points(self, estimates: Mapping[int, Estimate], colour: str, *, labels: bool) -> None:
        """Dots with whiskers; the first and the last are labelled with their value."""
        labelled = {min(estimates), max(estimates)} if estimates else set()
        for step, e in estimates.items():
            x, y = self._x(step), self._y(e.value)
            if e.low is not None and e.high is not None:
                low, high = self._y(e.low), self._y(e.high)
                path = f"M{x:.1f} {low:.1f}V{high:.1f}M{x - 4:.1f} {low:.1f}h8"
                path += f"M{x - 4:.1f} {high:.1f}h8"
                _add(self.group, "path", {"d": path, "stroke": INK, "stroke-width": 1.6})
            dot: Attributes = {
                "cx": x,
                "cy": y,
                "r": 5,
                "fill": colour,
                "stroke": PAPER,
                "stroke-width": 1.5,
            }
            _add(self.group, "circle", dot)
            if labels and step in labelled:
                right = step == max(labelled) and len(labelled) > 1
                shift, anchor = (-10, "end") if right else (10, "start")
                at = (x + shift, y + 18 if right else y + 4)
                self._label(*at, self._written(e.value, 1), anchor, INK, 650, halo=True)

    def _label(
        self,
        x: float,
        y: float,
        text: str,
        anchor: str = "start",
        fill: str = MUTED,
        weight: int = 400,
        *,
        halo: bool = False,
    ) -> None:
        style: Attributes = {
            "font-size": 12,
            "fill": fill,
            "font-weight": weight,
            "text-anchor": anchor,
        }
        if halo:
            style |= {"stroke": PAPER, "stroke-width": 4, "paint-order": "stroke"}
        _add(self.group, "text", style | {"x": x, "y": y}, text)

    def _path(self, steps: Sequence[float], values: Values) -> str:
        path, drawing = "", False
        for step, value in zip(steps, values, strict=True):
            if value is not None:
                path += f"{'L' if drawing else 'M'}{self._x(step):.1f} {self._y(value):.1f}"
            drawing = value is not None
        return path

    def _x(self, step: float) -> float:
        first, last = self.steps
        return (
            self.left + 8 + (step - first) / ((last - first) or 1) * (self.right - self.left - 16)
        )

    def _y(self, value: float) -> float:
        low, high = self.values
        return self.bottom - (value - low) / ((high - low) or 1) * (self.bottom - self.top - 6)

    def _written(self, value: float, digits: int = 0) -> str:
        return f"{100 * value:.{digits}f}%" if self.share else number(value)


def ticks(low: float, high: float, n: int) -> list[float]:
    """Round values that cut `[low, high]` into about `n` parts."""
    raw = ((high - low) or 1.0) / n
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


def _add(
    parent: ElementTree.Element,
    tag: str,
    attributes: Attributes | None = None,
    text: str | None = None,
) -> ElementTree.Element:
    written = {
        key: f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
        for key, value in (attributes or {}).items()
    }
    child = ElementTree.SubElement(parent, tag, written)
    child.text = None if text is None else _legal(text)
    return child


def _legal(text: str) -> str:
    """Text without the characters that XML forbids."""
    return re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text)


def _clipped(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."
