"""The learner's two routes agree, and micro-batches change nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from polyopt.batch import Batch
from polyopt.distribution import Distribution
from polyopt.ideas import build
from polyopt.objectives.objective import Objective
from polyopt.objectives.penalties import EntropyBonus
from polyopt.objectives.protocol import Evaluation, TokenLoss
from polyopt.objectives.surrogates import ClippedSurrogate
from polyopt.trainer import Trainer
from polyopt.updates.boundary_record import BoundaryRecord
from polyopt.updates.learner import Learner
from polyopt.updates.optimizers import AdamW, Constant
from polyopt.updates.staleness import with_fresh
from tests.tiny import TINY_NUMBERS, tiny_policy, tiny_task


def sampled_batch(expression: str = "grpo") -> tuple[Trainer, Batch]:
    """A trainer and a real batch of it, ready for the update."""
    trainer = Trainer(tiny_policy(), tiny_task(), build(expression, TINY_NUMBERS), steps=3)
    collected = trainer.collector.collect(0)
    assert collected.kept is not None
    batch = trainer._with_columns(collected.kept)
    return trainer, trainer._assign_credit(batch)


def learner(trainer: Trainer, objective: Objective, micro_tokens: int) -> Learner:
    return Learner(
        trainer.policy,
        objective,
        AdamW(),
        Constant(),
        distribution=Distribution(),
        micro_tokens=micro_tokens,
        total_steps=1,
    )


def gradients(made: Learner, batch: Batch, route: str = "gradient") -> list[Tensor]:
    prepared = batch if route == "gradient" else made.objective.prepare(batch)
    getattr(made, route)(prepared)
    return [p.grad.clone() for p in made.parameters if p.grad is not None]


OBJECTIVES = {
    "grpo": build("grpo").objective,
    "gspo": build("gspo").objective,
    "clip and entropy": Objective(surrogate=ClippedSurrogate(), entropy=EntropyBonus(0.05)),
    "dr-grpo": build("dr-grpo").objective,
}


def plain_gradients(trainer: Trainer, objective: Objective, batch: Batch) -> list[Tensor]:
    """Backward through one graph of the whole batch, from the loss to the weights."""
    batch = objective.prepare(batch)
    evaluation = trainer.policy.evaluate(batch, Distribution(), {"entropy"})
    loss: Any = objective(evaluation, batch.replace(logp_old=evaluation.logp.detach())).loss
    loss.backward()
    found = [p.grad.clone() for p in trainer.policy.trainable_parameters() if p.grad is not None]
    trainer.policy.model.zero_grad()
    return found


@pytest.mark.parametrize("micro_tokens", [40, 10_000])
@pytest.mark.parametrize("route", ["gradient_in_one_pass", "gradient_through_boundary"])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_both_routes_give_the_gradient_of_one_graph(
    name: str, route: str, micro_tokens: int
) -> None:
    trainer, batch = sampled_batch()
    wanted = plain_gradients(trainer, OBJECTIVES[name], batch)
    found = gradients(learner(trainer, OBJECTIVES[name], micro_tokens), batch, route)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("route", ["gradient_in_one_pass", "gradient_through_boundary"])
@pytest.mark.parametrize("micro_tokens", [1, 40, 100])
def test_micro_batches_change_nothing(route: str, micro_tokens: int) -> None:
    trainer, batch = sampled_batch()
    whole = gradients(learner(trainer, OBJECTIVES["grpo"], 10_000), batch, route)
    trainer.learner.optimizer.zero_grad()
    pieces = gradients(learner(trainer, OBJECTIVES["grpo"], micro_tokens), batch, route)
    for a, b in zip(whole, pieces, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-7)


def test_a_coupled_objective_gets_its_exact_gradient_in_pieces() -> None:
    """A loss over all pairs of tokens can't be cut; the boundary route needs no cutting."""

    class Spread:
        coupled = True

        def __call__(self, log_ratio: Tensor, evaluation: Evaluation, batch: Batch) -> TokenLoss:
            values = evaluation.logp.masked_fill(~batch.loss_mask, 0.0)
            return TokenLoss(values * values.sum())

    trainer, batch = sampled_batch()
    objective = Objective(surrogate=Spread())
    wanted = plain_gradients(trainer, objective, batch)
    pieces = gradients(learner(trainer, objective, 40), batch)
    for a, b in zip(pieces, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)


def test_ratio_is_exactly_one_on_policy() -> None:
    trainer, batch = sampled_batch("dr-grpo")
    metrics = learner(trainer, OBJECTIVES["dr-grpo"], 10_000).gradient(batch)
    assert metrics["log_ratio/abs"] == 0.0


def test_the_kl_term_alone_pulls_towards_the_reference() -> None:
    """Shared case 10: with advantage 0 the penalty is the only force, and it has a gradient."""
    trainer, batch = sampled_batch("grpo")
    still = batch.replace(
        advantages=torch.zeros_like(batch["advantages"]), logp_ref=batch["logp_ref"] - 1.0
    )
    made = learner(trainer, OBJECTIVES["grpo"], 10_000)
    before = trainer.policy.evaluate_all(still, Distribution()).logp
    made.gradient(still)
    made.apply()
    after = trainer.policy.evaluate_all(still, Distribution()).logp
    assert (after[batch.mask].mean() < before[batch.mask].mean()).item()


def test_a_gradient_that_is_not_finite_is_counted_and_not_applied() -> None:
    trainer, batch = sampled_batch("dr-grpo")
    made = learner(trainer, OBJECTIVES["dr-grpo"], 10_000)
    made.gradient(batch)
    weights = made.weights()
    made.parameters[0].grad = torch.full_like(made.parameters[0], float("inf"))
    assert made.apply()["skipped_updates"] == 1
    for before, p in zip(weights, made.parameters, strict=True):
        assert torch.equal(before, p)


def off_by(batch: Batch, nats: float) -> Batch:
    return batch.replace(logp_sampler=batch["logp_sampler"] + nats * batch.mask)


@pytest.mark.parametrize("off", [0.0, 0.01])
def test_a_sampler_is_taken_at_its_word_only_as_far_as_it_is_true(off: float) -> None:
    trainer, batch = sampled_batch()
    made = learner(trainer, OBJECTIVES["grpo"], 40)
    exact = gradients(
        made, batch.replace(logp_old=made.log_probs(batch)), "gradient_through_boundary"
    )
    made.optimizer.zero_grad()
    found = gradients(made, off_by(batch, off), "gradient_through_boundary")
    assert made.trusts_sampler == (off == 0.0)
    for a, b in zip(found, exact, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-7)


def rows_run(trainer: Trainer) -> list[int]:
    """Filled with the number of rows of each forward from now on."""
    rows: list[int] = []
    forward = trainer.policy.evaluate

    def counted(part: Batch, *arguments: Any) -> Evaluation:
        rows.append(len(part))
        return forward(part, *arguments)

    trainer.policy.evaluate = counted  # type: ignore[method-assign]
    return rows


def test_on_policy_the_boundary_costs_no_second_forward() -> None:
    trainer, batch = sampled_batch()
    rows = rows_run(trainer)
    for micro_tokens in (10_000, 40):
        rows.clear()
        made = learner(trainer, OBJECTIVES["grpo"], micro_tokens)
        made.gradient_through_boundary(made.objective.prepare(batch))
        assert sum(rows) <= len(batch)


def test_a_trusted_sampler_is_still_measured() -> None:
    trainer, batch = sampled_batch()
    made = learner(trainer, OBJECTIVES["grpo"], 40)
    batch = off_by(made.objective.prepare(with_fresh(batch)), 5e-5)
    assert made.gradient_through_boundary(batch)["sampler_gap"] == pytest.approx(5e-5, rel=0.1)
    assert made.trusts_sampler


def test_a_sampler_that_was_wrong_once_is_not_asked_again() -> None:
    trainer, batch = sampled_batch()
    made = learner(trainer, OBJECTIVES["grpo"], 40)
    made.record = BoundaryRecord()
    batch = made.record.numbered(off_by(made.objective.prepare(with_fresh(batch)), 0.01))
    rows = rows_run(trainer)
    counts = []
    for _ in range(2):
        rows.clear()
        metrics = made.gradient_through_boundary(batch)
        assert metrics["sampler_gap"] == pytest.approx(0.01, rel=1e-3)
        counts.append(sum(rows))
    live = counts[0] - counts[1]
    assert 0 < live <= len(batch)
    assert counts[1] == len(batch) + live


def test_what_was_found_at_a_wrong_sampler_is_forgotten() -> None:
    trainer, batch = sampled_batch()
    made = learner(trainer, OBJECTIVES["grpo"], 40)
    weights = []
    for _ in range(2):  # the long way after the short one, then the long way alone
        made.record = record = BoundaryRecord()
        numbered = record.numbered(off_by(made.objective.prepare(batch), 0.01))
        made.optimizer.zero_grad()
        made.gradient_through_boundary(numbered)
        record.keep()
        weights.append(record.columns(batch)["loss_weight"][batch.loss_mask])
    assert not made.trusts_sampler
    torch.testing.assert_close(*weights)


@pytest.mark.parametrize("route", ["gradient_in_one_pass", "gradient_through_boundary"])
def test_rows_without_gradient_are_not_run_and_nothing_changes(route: str) -> None:
    trainer, batch = sampled_batch()
    silent = batch.group == batch.group[0]
    batch = batch.replace(advantages=batch["advantages"].masked_fill(silent[:, None], 0.0))
    made = learner(trainer, OBJECTIVES["dr-grpo"], 40)
    known = batch.replace(logp_old=made.log_probs(batch))
    whole = gradients(made, known, route)
    made.optimizer.zero_grad()
    rows = rows_run(trainer)
    found = gradients(made, batch, route)
    assert sum(rows) <= int((~silent).sum())
    for a, b in zip(found, whole, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-7)
