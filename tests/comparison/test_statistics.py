"""The statistics against numbers worked out by hand, and against SciPy's own test."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import mannwhitneyu, norm, t

from polyopt.comparison.scores import area_per_step
from polyopt.comparison.statistics import (
    difference,
    interquartile_band,
    interquartile_estimate,
    more_seeds,
    performance_profile,
    probability_of_improvement,
)


def seeds(*values: float) -> dict[str, dict[int, float]]:
    return {"task": dict(enumerate(values))}


def test_the_interquartile_mean_leaves_out_a_quarter_at_either_end() -> None:
    values = np.array([0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 9.0])
    assert interquartile_estimate([values]).value == pytest.approx((0.3 + 0.4 + 0.5 + 0.6) / 4)
    five = np.array([9.0, 0.1, 0.2, 0.3, -9.0])
    assert interquartile_estimate([five]).value == pytest.approx(0.2)


def test_the_bootstrap_of_two_runs_has_the_interval_of_its_three_outcomes() -> None:
    # The mean of two draws from {0, 1} is 0, 1/2 or 1 with chances 1/4, 1/2, 1/4.
    found = interquartile_estimate([np.array([0.0, 1.0])])
    assert (found.value, found.low, found.high) == (0.5, 0.0, 1.0)


def test_one_run_has_no_interval() -> None:
    found = interquartile_estimate([np.array([0.4])])
    assert (found.value, found.low, found.high) == (0.4, None, None)


def test_seeds_are_resampled_within_their_task() -> None:
    # Tasks far apart, with equal seeds: within a stratum nothing varies, so neither does the mean.
    found = interquartile_estimate([np.array([0.1, 0.1]), np.array([0.9, 0.9])])
    assert (found.value, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))


def test_a_band_is_the_estimate_at_every_step() -> None:
    curves = np.array([[0.0, 0.1, 0.2], [0.5, 0.5, 0.5], [0.2, 0.9, 1.0]])
    middle, low, high = interquartile_band([curves])
    for i, row in enumerate(curves):
        alone = interquartile_estimate([row])
        assert low is not None
        assert high is not None
        assert (middle[i], low[i], high[i]) == (alone.value, alone.low, alone.high)


def test_the_chance_to_be_better_counts_pairs_and_halves_of_ties() -> None:
    # Of 4 pairs: 3 > 1, 3 > 2, 2 > 1, 2 = 2.
    found = probability_of_improvement(seeds(2.0, 3.0), seeds(1.0, 2.0))
    assert found.value == pytest.approx(3.5 / 4)
    one, two = [0.3, 0.5, 0.7, 0.1], [0.2, 0.5, 0.4]
    expected = mannwhitneyu(one, two).statistic / 12
    assert probability_of_improvement(seeds(*one), seeds(*two)).value == pytest.approx(expected)


def test_the_chance_to_be_better_is_averaged_over_tasks() -> None:
    better = {"a": {0: 1.0, 1: 1.0}, "b": {0: 0.0, 1: 0.0}, "only here": {0: 5.0}}
    worse = {"a": {0: 0.0, 1: 0.0}, "b": {0: 0.0, 1: 0.0}}
    assert probability_of_improvement(better, worse).value == pytest.approx((1 + 0.5) / 2)


def test_the_profile_is_the_share_of_runs_above_each_score() -> None:
    thresholds = np.array([0.0, 0.25, 0.5, 0.75])
    middle, low, high = performance_profile([np.array([0.2, 0.5, 0.6, 0.8])], thresholds)
    assert middle.tolist() == [1.0, 0.75, 0.5, 0.25]
    assert low is not None
    assert high is not None
    assert (low <= middle).all()
    assert (middle <= high).all()


def test_pairing_by_seed_takes_out_what_a_seed_does_to_both() -> None:
    first, second = [0.1, 0.5, 0.9, 0.3, 0.7], [0.2, 0.6, 1.0, 0.4, 0.8]
    paired = difference(seeds(*first), seeds(*second))
    assert paired.paired
    assert paired.separated
    assert paired.error == pytest.approx(0, abs=1e-12)
    others = {"task": {seed + 10: value for seed, value in enumerate(second)}}
    free = difference(seeds(*first), others)
    assert not free.paired
    assert not free.separated
    assert free.estimate.value == pytest.approx(paired.estimate.value) == pytest.approx(0.1)


def test_the_standard_error_is_that_of_the_mean_of_the_differences() -> None:
    # Of three seeds nothing is cut, so the interquartile mean is the mean: s / sqrt(3).
    found = difference(seeds(0.0, 0.0, 0.0), seeds(0.1, 0.2, 0.6))
    expected = np.std([0.1, 0.2, 0.6], ddof=1) / math.sqrt(3)
    assert found.error == pytest.approx(expected, rel=0.05)


def test_two_seeds_never_separate_anything() -> None:
    found = difference(seeds(0.1, 0.2), seeds(0.8, 0.9))
    assert not found.separated
    assert found.estimate.low is not None
    assert found.estimate.low > 0


def test_the_seeds_still_needed_follow_from_the_normal_approximation() -> None:
    value, error, n = 0.05, 0.04, 5
    total = n + (more_seeds(value, error, n) or 0)

    def reach(m: int) -> float:
        width = float(t.ppf(0.975, m - 1) + norm.ppf(0.8))
        return width * error * math.sqrt(n / m)

    assert reach(total) <= value < reach(total - 1)
    assert total == 27  # (1.96 + 0.84)^2 * 5 * 0.8^2 = 25.1; the t quantile asks for more


def test_fewer_seeds_are_needed_for_a_larger_difference_and_for_more_tasks() -> None:
    needed = [more_seeds(value, 0.04, 5) or 0 for value in (0.03, 0.05, 0.09)]
    assert needed == sorted(needed, reverse=True)
    assert (more_seeds(0.09, 0.04, 5, tasks=3) or 0) <= needed[-1]


def test_no_number_of_seeds_is_promised_for_no_difference() -> None:
    assert more_seeds(0.0, 0.04, 5) is None
    assert more_seeds(1e-6, 0.04, 5) is None


def test_the_area_under_a_curve_is_trapezoids_per_step() -> None:
    assert area_per_step([1, 2, 4], [0.0, 1.0, 0.5]) == pytest.approx((0.5 + 2 * 0.75) / 3)
    assert area_per_step([1, 2, 3], [0.0, None, 1.0]) == pytest.approx(0.5)
    assert area_per_step([3], [0.7]) == 0.7
    assert area_per_step([1], [None]) is None
