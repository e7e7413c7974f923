"""What a training step tells of its tokens: ratios, sampler gaps, weights in the loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.tiny import TINY_NUMBERS, tiny_policy, tiny_task
from torch import Tensor

from polyopt.batch import Batch
from polyopt.ideas import build
from polyopt.trainer import Trainer
from polyopt.updates.boundary_record import BoundaryRecord, quantiles


def trainer_of(expression: str, **numbers: object) -> Trainer:
    recipe = build(expression, {**TINY_NUMBERS, **numbers})
    return Trainer(tiny_policy(), tiny_task(), recipe, steps=3)


def credited(trainer: Trainer) -> Batch:
    """A real batch of the trainer's, ready for the update."""
    collected = trainer.collector.collect(0)
    assert collected.kept is not None
    return trainer._assign_credit(trainer._with_columns(collected.kept))


def recorded(trainer: Trainer, batch: Batch, route: str) -> dict[str, Tensor]:
    learner = trainer.learner
    learner.record = record = BoundaryRecord()
    prepared = learner.objective.prepare(record.numbered(batch))
    getattr(learner, route)(prepared)
    record.keep()
    return record.columns(batch)


def a_passage(record: BoundaryRecord, batch: Batch, ratio: float, gradient: float) -> None:
    log_ratio = torch.full(batch.mask.shape, ratio).log()
    record.note(batch, log_ratio, torch.full(batch.mask.shape, gradient))


@pytest.mark.parametrize("route", ["gradient_in_one_pass", "gradient_through_boundary"])
def test_on_policy_the_weight_in_the_loss_is_advantage_times_coefficient(route: str) -> None:
    trainer = trainer_of("dr-grpo", **{"updates.micro_tokens": 40})
    batch = credited(trainer)
    found = recorded(trainer, batch, route)
    coefficients = trainer.recipe.objective.aggregation(batch)
    wanted = (batch["advantages"] * coefficients)[batch.loss_mask]
    assert wanted.any()
    torch.testing.assert_close(found["loss_weight"][batch.loss_mask], wanted)
    assert (found["ratio"][batch.loss_mask] == 1).all()
    assert found["loss_weight"][~batch.loss_mask].isnan().all()


@pytest.mark.parametrize("route", ["gradient_in_one_pass", "gradient_through_boundary"])
def test_rows_that_are_not_run_trained_with_weight_zero(route: str) -> None:
    trainer = trainer_of("dr-grpo", **{"updates.micro_tokens": 40})
    batch = credited(trainer)
    silent = (batch.group == batch.group[0])[:, None]
    batch = batch.replace(advantages=batch["advantages"].masked_fill(silent, 0.0))
    found = recorded(trainer, batch, route)
    assert (found["loss_weight"][silent & batch.loss_mask] == 0).all()
    assert (found["ratio"][silent & batch.loss_mask] == 1).all()


def test_several_steps_on_a_token_add_up_and_the_last_ratio_stands() -> None:
    record = BoundaryRecord()
    batch = record.numbered(
        Batch.of(mask=torch.tensor([[1, 1], [1, 0]]), logp_old=torch.zeros(2, 2))
    )
    a_passage(record, batch, 1.0, -0.5)
    record.keep()
    record.forget()
    a_passage(record, batch.select(torch.tensor([1])), 1.5, 0.25)
    record.keep()
    found = record.columns(batch)
    assert found["ratio"].nan_to_num(-1).tolist() == [[1.0, 1.0], [1.5, -1.0]]
    assert found["loss_weight"].nan_to_num(-1).tolist() == [[0.5, 0.5], [0.25, -1.0]]
    assert record.metrics()["ratio/max"] == 1.5
    assert record.metrics()["ratio/p50"] == 1.0


def test_a_probe_without_a_step_leaves_no_trace() -> None:
    record = BoundaryRecord()
    batch = record.numbered(Batch.of(mask=torch.ones(1, 1), logp_old=torch.zeros(1, 1)))
    a_passage(record, batch, 9.0, 1.0)
    record.forget()
    assert record.metrics() == {}
    a_passage(record, batch, 1.25, 1.0)
    record.keep()
    assert set(record.metrics().values()) == {1.25}


@pytest.mark.parametrize("n", [1, 7, 1000])
def test_quantiles_are_of_nearest_rank(n: int) -> None:
    values = torch.randn(n, generator=torch.Generator().manual_seed(n))
    found = quantiles("x", values)
    for label, share in (("p01", 0.01), ("p10", 0.1), ("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        wanted = np.quantile(values.numpy(), share, method="inverted_cdf")
        assert found[f"x/{label}"] == pytest.approx(float(wanted))
    assert found["x/max"] == float(values.max())


def test_a_step_reports_how_its_ratios_and_gaps_are_distributed() -> None:
    numbers = {"updates.rule.minibatches": 3, "updates.optimizer.lr": 0.05}
    metrics = trainer_of("dapo", **numbers).step().metrics
    assert metrics["ratio/p01"] < 1 < metrics["ratio/p99"] <= metrics["ratio/max"]
    assert metrics["sampler_gap/p01"] <= metrics["sampler_gap/p50"] <= metrics["sampler_gap/p99"]
    assert metrics["sampler_gap/max"] >= metrics["sampler_gap"] > 0


@pytest.mark.parametrize("expression", ["grpo", "dapo", "gspo+clip-cov"])
def test_recording_changes_no_weight(expression: str) -> None:
    weights = []
    for record in (None, BoundaryRecord()):
        trainer = trainer_of(expression)
        batch = credited(trainer)
        trainer.learner.record = record
        numbered = batch if record is None else record.numbered(batch)
        trainer.recipe.updates.rule(trainer.learner, numbered, np.random.default_rng(0))
        weights.append(trainer.learner.weights())
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


def test_the_trained_batch_tells_ratio_and_weight_of_every_trained_token() -> None:
    trained = trainer_of("grpo+ktae").step().trained
    assert trained is not None
    for name in ("ratio", "loss_weight"):
        assert trained[name][trained.loss_mask].isfinite().all()
