"""`Summary`: what a comparison found, as numbers that the table and the page write down."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from polyopt.comparison.scores import RATE, RunScore, by_task
from polyopt.comparison.statistics import (
    Array,
    Difference,
    Scores,
    difference,
    interquartile_band,
    interquartile_estimate,
    performance_profile,
    probability_of_improvement,
    strata,
)
from polyopt.report.curve import Course
from polyopt.report.intervals import Estimate
from polyopt.report.series import Values, mean, smooth, thin

AREA = "area"
POINTS = 100
SMOOTHED_PARTS = 12
THRESHOLDS = 101
ENOUGH_SEEDS = 5
SAME_COST = 1.2


@dataclass(frozen=True)
class Standing:
    """One sum of ideas over all its runs.

    Attributes:
        name: Its expression.
        runs: Finished runs.
        seeds: Seeds per task, of the task with the fewest.
        final: Interquartile mean of held-out pass@1 at the end.
        area: Interquartile mean of the area under training accuracy, per step.
        tokens: Tokens sampled per run, on average.
        seconds: Seconds of training per run, on average.
        curves: Training accuracy over steps by task: interquartile mean and band.
        profile: Share of runs above each score, in percent of the score.
    """

    name: str
    runs: int
    seeds: int
    final: Estimate | None
    area: Estimate | None
    tokens: float | None
    seconds: float | None
    curves: dict[str, Course]
    profile: Course | None


@dataclass(frozen=True)
class Pair:
    """Two sums of ideas against each other, by `Summary.metric`.

    Attributes:
        first: The one named first.
        second: The other.
        improvement: Chance that a run of the second scores above one of the first.
        difference: The second minus the first.
    """

    first: str
    second: str
    improvement: Estimate
    difference: Difference


@dataclass(frozen=True)
class Failure:
    """A cell without a result: what it was, why, and where its log is."""

    cell: str
    error: str
    log: str


@dataclass(frozen=True)
class Summary:
    """Everything that a comparison found.

    Attributes:
        metric: By what pairs are compared: `pass@1`, or `area` if a run wasn't evaluated.
        tasks: Tasks, in order of appearance.
        standings: The sums of ideas, in the order they were named.
        pairs: Each two of them.
        failures: Cells that failed.
    """

    metric: str
    tasks: list[str]
    standings: list[Standing]
    pairs: list[Pair]
    failures: list[Failure]

    @property
    def cautions(self) -> list[str]:
        """What to know before reading the table: too few seeds, unequal cost."""
        return [text for text in (self._few_seeds(), self._unequal_cost()) if text]

    def _few_seeds(self) -> str:
        least = min((row.seeds for row in self.standings), default=0)
        if least >= ENOUGH_SEEDS:
            return ""
        if least == 1:
            return "One seed has no interval: take 5 or more."
        return f"Intervals of {least} seeds are too narrow: take 5 or more."

    def _unequal_cost(self) -> str:
        costs = sorted((row.tokens, row.name) for row in self.standings if row.tokens)
        if not costs or costs[-1][0] < SAME_COST * costs[0][0]:
            return ""
        (least, cheap), (most, dear) = costs[0], costs[-1]
        return (
            f"Equal steps aren't equal cost here: a run of {dear} sampled {most / least:.1f} times "
            f"the tokens of one of {cheap}."
        )

    def as_json(self) -> dict[str, Any]:
        """The numbers without the curves."""
        found = asdict(self)
        for standing in found["standings"]:
            del standing["curves"], standing["profile"]
        return found


def summarize(scores: Sequence[RunScore], failures: Sequence[Failure] = ()) -> Summary:
    """Compute all statistics of a comparison."""
    evaluated = all(score.final is not None for score in scores)
    value = _final if evaluated else _area
    groups: dict[str, list[RunScore]] = {}
    for score in scores:
        groups.setdefault(score.name, []).append(score)
    by_name = {name: by_task(runs, value) for name, runs in groups.items()}
    thresholds = _thresholds([strata(scores) for scores in by_name.values()])
    pairs = [_pair(first, second, by_name) for first, second in itertools.combinations(by_name, 2)]
    return Summary(
        metric=RATE if evaluated else AREA,
        tasks=list(dict.fromkeys(score.task for score in scores)),
        standings=[_standing(n, runs, by_name[n], thresholds) for n, runs in groups.items()],
        pairs=[pair for pair in pairs if pair is not None],
        failures=list(failures),
    )


def advice(pair: Pair) -> str:
    """One sentence on what a pair of sums of ideas shows, or what it would take."""
    change = pair.difference
    higher = pair.second if change.estimate.value > 0 else pair.first
    if change.separated:
        return f"{higher} is better"
    if change.error is None:
        return "one seed shows no spread: run 5 or more"
    if change.estimate.value == 0:
        return "overlap: no difference seen, so no number of seeds to promise"
    if change.more_seeds is None:
        return "overlap: more than 1,000 seeds would be needed; call them equal"
    return f"overlap: about {change.more_seeds} more seeds each would separate them"


def _standing(name: str, runs: Sequence[RunScore], compared: Scores, thresholds: Array) -> Standing:
    return Standing(
        name=name,
        runs=len(runs),
        seeds=min(sum(run.task == task for run in runs) for task in {run.task for run in runs}),
        final=_estimate(by_task(runs, _final)),
        area=_estimate(by_task(runs, _area)),
        tokens=mean([run.tokens for run in runs]),
        seconds=mean([run.seconds for run in runs]),
        curves=_curves(runs),
        profile=_profile(strata(compared), thresholds),
    )


def _pair(first: str, second: str, by_name: dict[str, Scores]) -> Pair | None:
    lower, upper = by_name[first], by_name[second]
    if not set(lower) & set(upper):
        return None
    improvement = probability_of_improvement(upper, lower)
    return Pair(first, second, improvement, difference(lower, upper))


def _estimate(scores: Scores) -> Estimate | None:
    samples = strata(scores)
    return interquartile_estimate(samples) if samples else None


def _thresholds(samples: Sequence[Sequence[Array]]) -> Array:
    """Scores at which the performance profile is drawn: those seen, and some room."""
    values = [values for strata in samples for values in strata]
    if not values:
        return np.linspace(0.0, 1.0, THRESHOLDS)
    low, high = float(np.concatenate(values).min()), float(np.concatenate(values).max())
    room = max(0.2 * (high - low), 0.02)
    return np.linspace(max(low - room, 0.0), min(high + room, 1.0), THRESHOLDS)


def _profile(samples: Sequence[Array], thresholds: Array) -> Course | None:
    if not samples:
        return None
    return _course([100 * float(t) for t in thresholds], *performance_profile(samples, thresholds))


def _curves(runs: Sequence[RunScore]) -> dict[str, Course]:
    found = {}
    for task in dict.fromkeys(run.task for run in runs):
        known = [_accuracy(run) for run in runs if run.task == task]
        steps = sorted(set.intersection(*(set(curve) for curve in known)))
        if steps:
            values = np.array([[curve[step] for curve in known] for step in steps])
            found[task] = _course(steps, *interquartile_band([values]))
    return found


def _accuracy(run: RunScore) -> dict[int, float]:
    """Training accuracy by step: a moving average over a twelfth of the run."""
    series = thin(run.series, POINTS)
    values = series.columns.get("accuracy", [])
    smoothed = smooth(values, max(1.0, len(values) / SMOOTHED_PARTS))
    return {s: v for s, v in zip(series.steps, smoothed, strict=False) if v is not None}


def _course(steps: Sequence[float], middle: Array, low: Array | None, high: Array | None) -> Course:
    def values(array: Array | None) -> Values:
        return [None] * len(steps) if array is None else [float(v) for v in array]

    return Course(steps, values(middle), values(low), values(high))


def _final(score: RunScore) -> float | None:
    return score.final


def _area(score: RunScore) -> float | None:
    return score.area
