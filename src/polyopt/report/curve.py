"""`write_curve`: the learning curve of a run, or of several, as an SVG picture for a README."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyopt.report.intervals import Estimate, estimate, rate_names
from polyopt.report.picture import Panel, Picture
from polyopt.report.record import RunRecord, read_run, step_of
from polyopt.report.series import Series, Values, columns, mean, smooth, thin

COLOURS = ("#1f66d0", "#d9591a", "#12906b", "#8250c4", "#b8860b", "#c03a74")
POINTS = 400
SMOOTHED_PARTS = 12


@dataclass(frozen=True)
class Course:
    """A metric over steps, over the runs of one recipe: its middle, and a band around it."""

    steps: Sequence[float]
    middle: Values
    low: Values
    high: Values


@dataclass(frozen=True)
class Recipe:
    """Runs of one expression, which differ in their seed."""

    name: str
    runs: list[RunRecord]
    metrics: list[Series]


def write_curve(run: Path | Sequence[Path], out: Path) -> Path:
    """Draw accuracy and reward per training step, with held-out accuracy as points.

    A line is an exponential moving average. Around one run lies a band of one standard deviation
    of the steps; over several seeds of a recipe, the line is their mean and the band their range.
    Recipes (runs with different expressions) get a colour each.

    Args:
        run: A run folder, or several.
        out: The SVG file to write.

    Raises:
        UserError: A folder isn't a run folder.
    """
    paths = [run] if isinstance(run, Path | str) else list(run)
    recipes = _recipes([read_run(Path(path)) for path in paths])
    names = _panels(recipes)
    first = recipes[0].runs[0].about
    title = recipes[0].name if len(recipes) == 1 else " / ".join(r.name for r in recipes)
    facts = [str(first[key]) for key in ("model", "task") if first.get(key)]
    picture = Picture(title, " · ".join(facts), _caption(recipes))
    steps = _steps(recipes)
    for i, name in enumerate(names):
        panel = picture.panel(i, len(names), name, share=name == "accuracy")
        _draw(panel, name, recipes, steps)
    if len(recipes) > 1:
        picture.legend([(r.name, COLOURS[i % len(COLOURS)]) for i, r in enumerate(recipes)])
    out = Path(out)
    out.write_text(picture.text(), encoding="utf-8")
    return out


def course(metrics: Sequence[Series], name: str) -> Course:
    """The smoothed course of a metric over one run, or its mean and range over several."""
    if len(metrics) == 1:
        return _one_run(metrics[0].steps, metrics[0].columns.get(name, []))
    by_step: dict[int, list[float]] = {}
    for series in metrics:
        values = series.columns.get(name)
        if values is None:
            continue
        smoothed = smooth(values, _span(len(values)))
        for step, value in zip(series.steps, smoothed, strict=True):
            if value is not None:
                by_step.setdefault(step, []).append(value)
    steps = sorted(by_step)
    return Course(
        steps,
        [mean(by_step[step]) for step in steps],
        [min(by_step[step]) for step in steps],
        [max(by_step[step]) for step in steps],
    )


def _one_run(steps: list[int], values: Values) -> Course:
    span = _span(len(values))
    middle = smooth(values, span)
    squares = [
        None if value is None or centre is None else (value - centre) ** 2
        for value, centre in zip(values, middle, strict=True)
    ]
    spread = [None if s is None else math.sqrt(s) for s in smooth(squares, span)]
    low = [None if m is None or s is None else m - s for m, s in zip(middle, spread, strict=True)]
    high = [None if m is None or s is None else m + s for m, s in zip(middle, spread, strict=True)]
    return Course(steps if values else [], middle, low, high)


def _span(n: int) -> float:
    return max(1.0, n / SMOOTHED_PARTS)


def _recipes(runs: Sequence[RunRecord]) -> list[Recipe]:
    by_name: dict[str, list[RunRecord]] = {}
    for run in runs:
        by_name.setdefault(run.title, []).append(run)
    return [Recipe(n, rs, [columns(r.metrics) for r in rs]) for n, rs in by_name.items()]


def _panels(recipes: Sequence[Recipe]) -> list[str]:
    """Accuracy if it is known, reward if it says something else."""
    series = [s for recipe in recipes for s in recipe.metrics]
    evaluated = any(rate_names(*run.evals) for recipe in recipes for run in recipe.runs)
    names = ["accuracy"] if evaluated or any("accuracy" in s.columns for s in series) else []
    own = [s.columns["reward/mean"] for s in series if "reward/mean" in s.columns]
    told = [s.columns.get("accuracy") for s in series if "reward/mean" in s.columns]
    if any(reward != accuracy for reward, accuracy in zip(own, told, strict=True)):
        names.append("reward")
    return names or ["reward"]


def _steps(recipes: Sequence[Recipe]) -> list[int]:
    """First and last step of anything logged; empty if nothing is."""
    logged = [step for recipe in recipes for series in recipe.metrics for step in series.steps]
    logged += [step_of(row) or 0 for recipe in recipes for run in recipe.runs for row in run.evals]
    return [min(logged), max(logged)] if logged else []


def _draw(panel: Panel, name: str, recipes: Sequence[Recipe], steps: Sequence[int]) -> None:
    metric = "accuracy" if name == "accuracy" else "reward/mean"
    courses = [course(recipe.metrics, metric) for recipe in recipes]
    points = [_held_out(recipe) if name == "accuracy" else {} for recipe in recipes]
    values = [v for c in courses for v in (*c.low, *c.middle, *c.high) if v is not None]
    for estimates in points:
        values += [v for e in estimates.values() for v in (e.value, e.low, e.high) if v is not None]
    panel.scale(steps, values)
    for i, drawn in enumerate(map(_thinned, courses)):
        colour = COLOURS[i % len(COLOURS)]
        panel.band(drawn.steps, drawn.low, drawn.high, colour)
        panel.line(drawn.steps, drawn.middle, colour)
    for i, estimates in enumerate(points):
        panel.points(estimates, COLOURS[i % len(COLOURS)], labels=len(recipes) == 1)


def _held_out(recipe: Recipe) -> dict[int, Estimate]:
    """The first rate (pass@1) by step; over several seeds, its mean and range."""
    by_step: dict[int, list[Estimate]] = {}
    for run in recipe.runs:
        for row in run.evals:
            name = next(iter(rate_names(row)), None)
            step = step_of(row)
            if name and step is not None and (found := estimate(row, name)):
                by_step.setdefault(step, []).append(found)
    return {step: _over_seeds(found) for step, found in sorted(by_step.items())}


def _over_seeds(found: Sequence[Estimate]) -> Estimate:
    if len(found) == 1:
        return found[0]
    values = [e.value for e in found]
    return Estimate(math.fsum(values) / len(values), min(values), max(values))


def _thinned(drawn: Course) -> Course:
    parts: dict[str, Any] = {"middle": drawn.middle, "low": drawn.low, "high": drawn.high}
    thinned = thin(Series([int(step) for step in drawn.steps], parts), POINTS)
    return Course(thinned.steps, *(thinned.columns[name] for name in parts))


def _caption(recipes: Sequence[Recipe]) -> str:
    most = max(len(recipe.runs) for recipe in recipes)
    held_out = any(recipe.runs[0].evals for recipe in recipes)
    if most > 1:
        words = f"line: mean of up to {most} seeds, smoothed; band: their range"
        return words + ("; points: held-out mean and range" if held_out else "")
    words = "line: moving average; band: one standard deviation of the steps"
    return words + ("; points: held-out with 95% interval" if held_out else "")
