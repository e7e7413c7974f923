"""Every metric that any idea logs is documented, and has the type that is documented."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import polyopt
from polyopt.ideas import load_catalog
from polyopt.metrics import EVALUATION, TRAINING, Metric, explanation, metric
from polyopt.run_folder import read_rows
from polyopt.run_schema import ROLLOUT, RUN, Field
from tests.laws.test_recipes import tiny_trainer
from tests.tiny import TINY_NUMBERS, tiny_policy, tiny_task

KINDS: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "number": (int, float, type(None)),
    "object": dict,
    "array": list,
    "array of strings": list,
    "array of numbers": list,
}


def check(row: dict[str, Any], metrics: tuple[Metric, ...] | None = None) -> None:
    """Fail for the first metric that isn't documented, or isn't what its entry says."""
    for name, value in row.items():
        entry = metric(name, metrics)
        assert entry is not None, f"{name!r} is logged, but src/polyopt/metrics.py has no entry"
        assert entry.fits(value), f"{name!r} is {value!r}, but documented as {entry.unit}"


@pytest.mark.parametrize("idea", sorted(load_catalog()))
def test_every_metric_of_an_idea_is_documented(idea: str) -> None:
    trainer = tiny_trainer(idea, seed=0)
    for _ in range(2):
        check(trainer.step().metrics)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints, evaluations of several samples and rollouts of every step."""
    folder = tmp_path_factory.mktemp("documented") / "run"
    polyopt.train(
        tiny_policy(),
        tiny_task(),
        "grpo+ktae",
        steps=4,
        run=folder,
        overrides=TINY_NUMBERS,
        eval_every=2,
        eval_samples=3,
        checkpoint_every=2,
        log_rollouts_every=1,
        quiet=True,
    )
    return folder


def test_every_column_of_metrics_is_documented(run: Path) -> None:
    rows = read_rows(run / "metrics.jsonl")
    for row in rows:
        check(row)
    assert any("seconds/checkpoint" in row for row in rows)
    assert any("seconds/evaluate" in row for row in rows)


def test_every_column_of_evals_is_documented(run: Path) -> None:
    rows = read_rows(run / "evals.jsonl")
    assert [row.pop("phase") for row in rows] == ["before", "step-2", "after"]
    for row in rows:
        check(row, EVALUATION)
    assert {"pass@2", "avg@3", "maj@3/high"} <= set(rows[0])


def test_run_json_and_rollouts_hold_what_is_documented(run: Path) -> None:
    fields(json.loads((run / "run.json").read_text()), RUN)
    names = {path.name for path in (run / "rollouts").iterdir()}
    assert {"before.jsonl", "step-000001.jsonl", "after.jsonl"} <= names
    for path in (run / "rollouts").iterdir():
        for row in read_rows(path):
            fields(row, ROLLOUT)


def fields(row: dict[str, Any], documented: tuple[Field, ...]) -> None:
    """Fail for a field that isn't documented, has another type, or is missing."""
    known = {field.name.replace("{part}", ".+"): field for field in documented}
    for name, value in row.items():
        found = next((f for pattern, f in known.items() if re.fullmatch(pattern, name)), None)
        assert found is not None, f"{name!r} is written, but src/polyopt/run_schema.py lacks it"
        assert isinstance(value, KINDS[found.kind]), (name, value)
    assert {field.name for field in documented if field.when == "always"} <= set(row)


def test_an_undocumented_metric_fails_with_its_name() -> None:
    with pytest.raises(AssertionError, match="'greso/skipped' is logged"):
        check({"greso/skipped": 1.0})
    with pytest.raises(AssertionError, match=r"'truncated' is 1.5, but documented as share"):
        check({"truncated": 1.5})
    with pytest.raises(AssertionError, match=r"'rounds' is 1.5, but documented as count"):
        check({"rounds": 1.5})
    with pytest.raises(AssertionError, match="'loss' is '0'"):
        check({"loss": "0"})


def test_a_name_in_full_goes_before_a_family() -> None:
    found = metric("reward/mean")
    assert found is not None
    assert found.name == "reward/mean"
    assert metric("advantage/key-tokens").name == "advantage/{part}"  # type: ignore[union-attr]
    assert metric("pass@8/low", EVALUATION).name == "{rate}/low"  # type: ignore[union-attr]
    assert metric("advantage/") is None
    assert explanation("entropy").endswith(", in nats")
    assert explanation("mine") == ""


def test_no_name_is_documented_twice() -> None:
    names = [entry.name for group in TRAINING.values() for entry in group]
    assert len(names) == len(set(names))
