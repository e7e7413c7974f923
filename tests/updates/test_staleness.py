"""How old what trains is: in optimizer steps, and in nats."""

from __future__ import annotations

import pytest
import torch
from tests.lagging_engine import LaggingEngine
from tests.tiny import TINY_NUMBERS, tiny_policy, tiny_task

from polyopt.batch import FORCED, Batch
from polyopt.ideas import build
from polyopt.trainer import Trainer
from polyopt.updates.staleness import drift, staleness


def of_versions(*rows: list[int], rollout: list[int] | None = None) -> Batch:
    """A batch whose tokens were sampled by these versions of the weights, or given."""
    provenance = torch.tensor(rows)
    return Batch.of(
        mask=provenance >= 0,
        group=torch.zeros(len(rows), dtype=torch.long),
        rollout=torch.tensor(rollout or range(len(rows))),
        rewards=torch.zeros(len(rows)),
        provenance=provenance,
        logp_sampler=torch.full(provenance.shape, -1.0),
    )


def test_a_rollout_is_as_old_as_its_oldest_trained_token() -> None:
    batch = of_versions([5, 5], [2, 5], [FORCED, 4])
    assert staleness(batch, 5) == {"staleness/mean": pytest.approx(4 / 3), "staleness/max": 3.0}


def test_rows_of_one_rollout_count_once() -> None:
    batch = of_versions([1, 1], [3, 3], [5, 5], rollout=[0, 0, 1])
    assert staleness(batch, 5) == {"staleness/mean": 2.0, "staleness/max": 4.0}


def test_given_tokens_have_no_age_even_where_they_train() -> None:
    batch = of_versions([FORCED, FORCED])
    batch = batch.replace(mask=torch.ones_like(batch.mask))
    assert staleness(batch, 9) == {}
    moved = drift(torch.zeros(1, 2), batch, 9)["staleness/drift"]
    assert not moved.any()


def test_drift_is_the_distance_at_old_tokens_alone() -> None:
    batch = of_versions([3, 5])
    found = drift(torch.tensor([[-1.4, -7.0]]), batch, 5)["staleness/drift"]
    torch.testing.assert_close(found, torch.tensor([[0.4, 0.0]]))


def trainer_of(expression: str, every: int = 0, **numbers: object) -> Trainer:
    recipe, policy = build(expression, TINY_NUMBERS | numbers), tiny_policy()
    engine = LaggingEngine(policy, every) if every else None
    return Trainer(policy, tiny_task(), recipe, steps=8, engine=engine)


def test_one_step_on_fresh_rollouts_is_not_stale() -> None:
    trainer = trainer_of("dr-grpo")
    for _ in range(3):
        metrics = trainer.step().metrics
        assert metrics["staleness/mean"] == metrics["staleness/max"] == 0
        assert metrics["staleness/drift"] == 0


def test_several_steps_on_a_batch_count_from_its_sampling() -> None:
    numbers = {"updates.rule.minibatches": 2, "updates.rule.epochs": 2}
    trainer = trainer_of("dr-grpo", **numbers)
    for _ in range(2):
        metrics = trainer.step().metrics
    assert metrics["staleness/mean"] == 1.5
    assert metrics["staleness/max"] == 3
    assert metrics["staleness/drift"] > 0.01


def test_a_sampler_that_lags_is_as_old_as_its_weights() -> None:
    trainer = trainer_of("dr-grpo", every=3)
    steps = [trainer.step().metrics for _ in range(7)]
    assert [m["staleness/max"] for m in steps] == [0, 1, 2, 0, 1, 2, 0]
    assert steps[2]["staleness/drift"] > steps[1]["staleness/drift"] > 0


def test_replayed_rollouts_are_as_old_as_when_they_were_sampled() -> None:
    trainer = trainer_of("rlep", **{"prompts.per_step": 8})
    steps = [trainer.step().metrics for _ in range(4)]
    assert steps[0]["staleness/max"] == 0
    assert steps[3]["staleness/max"] >= 2
    assert 0 < steps[3]["staleness/mean"] < steps[3]["staleness/max"]
    assert steps[3]["staleness/drift"] > 0
