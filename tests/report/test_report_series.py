"""Columns of metrics, thinning, smoothing, and the tolerant reading before them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from polyopt.report.intervals import Estimate, difference, estimate, finite, rate_names
from polyopt.report.record import read_run
from polyopt.report.series import Series, columns, rounded, smooth, thin


def test_columns_line_up_with_steps_where_values_are_missing() -> None:
    series = columns([{"step": 1, "a": 1}, {"step": 2, "b": True}, {"step": 4, "a": math.nan}])
    assert series.steps == [1, 2, 4]
    assert series.columns == {"a": [1, None, None], "b": [None, 1, None]}


def test_thin_averages_bins_and_keeps_maxima() -> None:
    values: list[float | None] = [1, 3, None, 5, 7]
    thinned = thin(Series([1, 2, 3, 4, 5], {"x": values, "length/max": values}), 3)
    assert thinned.steps == [2, 4, 5]
    assert thinned.columns == {"x": [2, 5, 7], "length/max": [3, 5, 7]}
    assert thinned.bin == 2


def test_smoothing_starts_at_the_first_value_and_tends_to_the_last() -> None:
    smoothed = smooth([2.0, *[4.0] * 200], 9)
    assert smoothed[0] == 2.0
    assert smoothed[1] == pytest.approx((0.8 * 2 + 4) / 1.8)
    assert smoothed[-1] == pytest.approx(4.0)


def test_smoothing_leaves_gaps_and_span_one_changes_nothing() -> None:
    assert smooth([1.0, None, 3.0], 1) == [1.0, None, 3.0]
    assert smooth([1.0, None, 1.0], 9) == [1.0, None, pytest.approx(1.0)]


def test_rounded_keeps_significant_digits() -> None:
    assert rounded(0.000123456, 3) == 0.000123
    assert rounded(12345.6, 3) == 12300
    assert isinstance(rounded(12345.6, 3), int)
    assert rounded(None, 3) is None


def test_difference_of_wilson_intervals_is_newcombes() -> None:
    """56/70 against 48/80, the worked example of Newcombe (1998): 0.0524 to 0.3339."""
    before = Estimate(48 / 80, 0.4904, 0.7004)
    after = Estimate(56 / 70, 0.6917, 0.8770)
    change = difference(before, after)
    assert change.value == pytest.approx(0.2)
    assert change.low == pytest.approx(0.0524, abs=5e-4)
    assert change.high == pytest.approx(0.3339, abs=5e-4)


def test_difference_without_an_interval_has_none() -> None:
    change = difference(Estimate(0.25), Estimate(0.5, 0.4, 0.6))
    assert change == Estimate(0.25, None, None)


def test_estimate_reads_a_row() -> None:
    assert estimate({"a": 1, "a/low": math.nan}, "a") == Estimate(1.0, None, None)
    assert estimate({"a": None}, "a") is None


def test_rates_are_ordered_by_kind_and_k() -> None:
    row = {"maj@8": 1, "pass@16": 1, "pass@2": 1, "pass@2/low": 1, "avg@8": 1, "length/mean": 1}
    assert rate_names(row) == ["pass@2", "pass@16", "avg@8", "maj@8"]


def test_only_finite_numbers_count() -> None:
    assert [finite(v) for v in (True, 2, 10**400, math.inf, "3", None)] == [
        1.0, 2.0, None, None, None, None,
    ]  # fmt: skip


def test_the_last_row_of_a_repeated_step_counts(tmp_path: Path) -> None:
    rows = [{"step": 2, "a": 1}, {"step": 1, "a": 2}, {"step": 2, "a": 3}, {"a": 4}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    record = read_run(tmp_path)
    assert [(row["step"], row["a"]) for row in record.metrics] == [(1, 2), (2, 3)]
    assert record.title == tmp_path.name


def test_lines_end_at_line_feeds_only(tmp_path: Path) -> None:
    text = json.dumps({"step": 1, "note": "a\u2028b\u0085c"}, ensure_ascii=False)
    (tmp_path / "metrics.jsonl").write_text(text + "\n[1]\nnot json\n")
    record = read_run(tmp_path)
    assert record.metrics[0]["note"] == "a\u2028b\u0085c"
    assert record.unreadable == {"metrics.jsonl": 2}


def test_an_evaluation_after_training_follows_others_of_its_step(tmp_path: Path) -> None:
    rows = [{"step": 5, "phase": "after"}, {"step": 5, "phase": "step-5"}, {"step": 0}]
    (tmp_path / "evals.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    phases = [row.get("phase") for row in read_run(tmp_path).evals]
    assert phases == [None, "step-5", "after"]
