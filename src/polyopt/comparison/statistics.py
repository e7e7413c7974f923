"""Statistics over few seeds: interquartile means, bootstrap intervals, what separates two.

The estimators are those of Agarwal et al., Deep Reinforcement Learning at the Edge of the
Statistical Precipice (arXiv 2108.13264), computed with SciPy. Scores come as `Scores`: by task,
then by seed. Tasks are the strata of the bootstrap: seeds are resampled within each task.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from polyopt.errors import UserError
from polyopt.report.intervals import Estimate

Array: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Scores: TypeAlias = Mapping[str, Mapping[int, float]]

RESAMPLES = 2000
CONFIDENCE = 0.95
POWER = 0.8
FEWEST_SEEDS = 3
MOST_SEEDS = 1000


@dataclass(frozen=True)
class Difference:
    """How far the second of two lies above the first.

    Attributes:
        estimate: Difference of interquartile means with its bootstrap interval.
        error: Its standard error: the bootstrap's, times `sqrt(n / (n - 1))`; None at one seed.
        seeds: Seeds per task that it rests on (of the task with the fewest).
        paired: The same seeds are compared, each with itself.
        separated: Both the bootstrap interval and the t interval leave out 0.
        more_seeds: Seeds that either needs on top to be told apart with 80% power, if the
            difference is what it seems; None if separated, unknown, or beyond `MOST_SEEDS`.
    """

    estimate: Estimate
    error: float | None
    seeds: int
    paired: bool
    separated: bool
    more_seeds: int | None


def require_scipy() -> None:
    """Say what to install before any run starts, not after hours of training.

    Raises:
        UserError: SciPy isn't installed.
    """
    try:
        import scipy.stats  # noqa: F401
    except ImportError:
        raise UserError(
            "comparing needs SciPy for its statistics: pip install 'polyopt[compare]'"
        ) from None


def interquartile_mean(values: Array, axis: int = -1) -> Any:
    """Mean without the lowest and the highest quarter (of n values, `n // 4` at either end)."""
    from scipy.stats import trim_mean

    return trim_mean(values, 0.25, axis=axis)


def strata(scores: Scores) -> list[Array]:
    """An array of scores per task."""
    return [np.array(list(by_seed.values()), float) for by_seed in scores.values() if by_seed]


def interquartile_estimate(samples: Sequence[Array]) -> Estimate:
    """Interquartile mean over all runs, with its stratified-bootstrap interval.

    The last axis is that of the seeds; there are no ends if a task has one seed only.
    """
    ends = _interval(samples, _pooled_mean)
    return Estimate(float(interquartile_mean(np.concatenate(samples))), *_pair_of_floats(ends))


def interquartile_band(samples: Sequence[Array]) -> tuple[Array, Array | None, Array | None]:
    """`interquartile_estimate` at every point of curves: arrays [points, seeds], one per task."""
    middle = interquartile_mean(np.concatenate(samples, axis=-1))
    low, high = _interval(samples, _pooled_mean) or (None, None)
    return middle, low, high


def probability_of_improvement(better: Scores, worse: Scores) -> Estimate:
    """Chance that a run of the first scores above one of the second, averaged over tasks.

    Per task this is the Mann-Whitney statistic over the number of pairs; ties count half.
    """
    tasks = [task for task in better if task in worse]
    first = strata({task: better[task] for task in tasks})
    second = strata({task: worse[task] for task in tasks})

    def chance(*samples: Array, axis: int = -1) -> Any:
        halves = zip(samples[: len(first)], samples[len(first) :], strict=True)
        return np.mean([_wins(a, b) for a, b in halves], axis=0)

    ends = _interval([*first, *second], chance)
    return Estimate(float(chance(*first, *second)), *_pair_of_floats(ends))


def performance_profile(
    samples: Sequence[Array], thresholds: Array
) -> tuple[Array, Array | None, Array | None]:
    """Share of runs that score above each threshold, with its pointwise interval."""
    above = [(values > thresholds[:, None]).astype(float) for values in samples]
    low, high = _interval(above, _pooled_share) or (None, None)
    return _pooled_share(*above), low, high


def difference(first: Scores, second: Scores) -> Difference:
    """The second's interquartile mean minus the first's, over the tasks that both have.

    Where every task has two seeds or more in common, these are resampled as pairs: what a seed
    does to both (its prompts, its sampling noise) cancels.
    """
    tasks = [task for task in first if task in second]
    common = {task: sorted(set(first[task]) & set(second[task])) for task in tasks}
    paired = bool(tasks) and all(
        len(seeds) > 1 or first[task].keys() == second[task].keys()
        for task, seeds in common.items()
    )
    if paired:
        lows = [np.array([first[task][seed] for seed in common[task]]) for task in tasks]
        highs = [np.array([second[task][seed] for seed in common[task]]) for task in tasks]
    else:
        lows, highs = (
            [np.array(list(s[task].values())) for task in tasks] for s in (first, second)
        )
    value = float(_pooled_mean(*highs) - _pooled_mean(*lows))
    found = _paired_bootstrap(lows, highs) if paired else _free_bootstrap(lows, highs)
    seeds = min(len(values) for values in (*lows, *highs))
    if found is None:
        return Difference(Estimate(value), None, seeds, paired, False, None)
    error = float(found.standard_error) * math.sqrt(seeds / (seeds - 1))
    ends = found.confidence_interval
    interval = Estimate(value, float(ends.low), float(ends.high))
    separated = _separated(interval, error, seeds, len(tasks))
    more = None if separated else more_seeds(value, error, seeds, len(tasks))
    return Difference(interval, error, seeds, paired, separated, more)


def more_seeds(value: float, error: float, seeds: int, tasks: int = 1) -> int | None:
    """Seeds on top of `seeds` with which a difference this large is found with 80% power.

    The smallest n with `(t(0.975, tasks (n - 1)) + z(0.8)) error sqrt(seeds / n) <= |value|`: the
    normal approximation, in which the standard error falls as `1 / sqrt(n)`.

    Returns:
        None if that takes more than `MOST_SEEDS` seeds.
    """
    from scipy.stats import norm, t

    n = np.arange(max(seeds + 1, FEWEST_SEEDS), MOST_SEEDS + 1)
    widths = t.ppf((1 + CONFIDENCE) / 2, tasks * (n - 1)) + norm.ppf(POWER)
    enough = widths * error * np.sqrt(seeds / n) <= abs(value)
    return int(n[np.argmax(enough)]) - seeds if value and enough.any() else None


def _separated(interval: Estimate, error: float, seeds: int, tasks: int) -> bool:
    from scipy.stats import t

    if seeds < FEWEST_SEEDS or interval.low is None or interval.high is None:
        return False
    reach = float(t.ppf((1 + CONFIDENCE) / 2, tasks * (seeds - 1))) * error
    outside = interval.low > 0 or interval.high < 0
    return outside and abs(interval.value) > reach


def _paired_bootstrap(lows: Sequence[Array], highs: Sequence[Array]) -> Any:
    def change(*drawn: Array, axis: int = -1) -> Any:
        index = [i.astype(int) for i in drawn]
        above = _pooled_mean(*(high[i] for high, i in zip(highs, index, strict=True)))
        return above - _pooled_mean(*(low[i] for low, i in zip(lows, index, strict=True)))

    return _bootstrap([np.arange(len(low), dtype=float) for low in lows], change)


def _free_bootstrap(lows: Sequence[Array], highs: Sequence[Array]) -> Any:
    def change(*samples: Array, axis: int = -1) -> Any:
        return _pooled_mean(*samples[len(lows) :]) - _pooled_mean(*samples[: len(lows)])

    return _bootstrap([*lows, *highs], change)


def _wins(a: Array, b: Array) -> Any:
    """Share of pairs in which `a` is above `b`, over the last axis; ties count half."""
    gaps = np.sign(a[..., :, None] - b[..., None, :])
    return (gaps.mean(axis=(-2, -1)) + 1) / 2


def _pooled_mean(*samples: Array, axis: int = -1) -> Any:
    return interquartile_mean(np.concatenate(samples, axis=-1))


def _pooled_share(*samples: Array, axis: int = -1) -> Any:
    return np.concatenate(samples, axis=-1).mean(axis=-1)


def _interval(samples: Sequence[Array], statistic: Callable[..., Any]) -> Any:
    found = _bootstrap(samples, statistic)
    return None if found is None else tuple(found.confidence_interval)


def _bootstrap(samples: Sequence[Array], statistic: Callable[..., Any]) -> Any:
    """SciPy's bootstrap, which resamples each sample by itself: strata; None for lone values."""
    from scipy.stats import bootstrap

    if not samples or min(values.shape[-1] for values in samples) < 2:
        return None
    return bootstrap(
        tuple(samples),
        statistic,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        vectorized=True,
        axis=-1,
        rng=np.random.default_rng(0),
    )


def _pair_of_floats(ends: Any) -> tuple[float | None, float | None]:
    return (None, None) if ends is None else (float(ends[0]), float(ends[1]))
