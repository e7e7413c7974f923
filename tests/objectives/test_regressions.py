"""Regressions of movement on reward: what the vectors don't cover."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.laws.batches import ragged_batch
from torch import Tensor

from polyopt.advantages.baselines import group_mean_baseline, raw_reward
from polyopt.advantages.trajectories import Trajectories
from polyopt.batch import Batch
from polyopt.objectives.aggregation import sequence_mean_token_mean
from polyopt.objectives.objective import Objective
from polyopt.objectives.partition import FlowBalance
from polyopt.objectives.protocol import Evaluation
from polyopt.objectives.regressions import (
    ContrastiveGradient,
    FixedScaleRegression,
    GroupVarianceRegression,
    OptimalAdvantageRegression,
    RelativeRewardRegression,
    StandardisedRegression,
    TrajectoryBalance,
)

GROUPED: list[Any] = [
    RelativeRewardRegression(0.7),
    GroupVarianceRegression(0.3),
    TrajectoryBalance(0.4),
    ContrastiveGradient(0.4),
    StandardisedRegression(),
    FixedScaleRegression(),
]
every_regression = pytest.mark.parametrize("part", GROUPED, ids=lambda part: type(part).__name__)


def loss_and_grad(part: Any, batch: Batch, logp: Tensor, **objective: Any) -> tuple[Tensor, Tensor]:
    leaf = logp.clone().requires_grad_()
    loss = Objective(surrogate=part, **objective)(Evaluation(leaf), batch).loss
    (grad,) = torch.autograd.grad(loss, leaf)
    return loss.detach(), grad


def moved(batch: Batch, scale: float = 0.3) -> Tensor:
    draw = torch.Generator().manual_seed(3)
    noise = torch.randn(batch.mask.shape, generator=draw, dtype=torch.float64)
    return batch["logp_old"] + scale * noise


def credited(batch: Batch, estimator: Any = raw_reward) -> Batch:
    return batch.replace(advantages=estimator(torch.zeros_like(batch["logp_old"]), batch))


def test_relative_rewards_are_regressed_over_all_pairs_of_uneven_groups() -> None:
    batch = credited(ragged_batch())
    logp = moved(batch)
    found, _ = loss_and_grad(RelativeRewardRegression(0.7), batch, logp)
    live = batch.mask.any(1)
    move = ((logp - batch["logp_old"]) * batch.mask).sum(1)
    gaps = [
        ((move[i] - move[j]) - 0.7 * (batch.rewards[i] - batch.rewards[j])) ** 2
        for i in range(len(batch))
        for j in range(i)
        if batch.group[i] == batch.group[j] and live[i] and live[j]
    ]
    torch.testing.assert_close(found, torch.stack(gaps).mean())


def test_group_variance_is_reinforce_with_a_mean_baseline_on_policy() -> None:
    batch = ragged_batch()
    batch = batch.select(batch.group == 3)  # four rollouts, all with tokens
    batch = credited(batch, group_mean_baseline)
    _, grad = loss_and_grad(GroupVarianceRegression(0.3), batch, batch["logp_old"])
    torch.testing.assert_close(grad, -batch["advantages"] * 0.3 / 3)


def test_balance_and_contrast_pull_in_one_direction() -> None:
    batch = ragged_batch()
    batch = credited(batch.select(batch.group == 3))
    _, balance = loss_and_grad(TrajectoryBalance(0.4), batch, moved(batch))
    _, contrast = loss_and_grad(ContrastiveGradient(0.4), batch, moved(batch))
    torch.testing.assert_close(contrast, balance * 0.4**2 * 4 / 3 * 4)


@pytest.mark.parametrize("part", GROUPED[:4], ids=lambda part: type(part).__name__)
def test_a_credit_shift_of_a_whole_prompt_changes_no_gradient(part: Any) -> None:
    batch = credited(ragged_batch(), group_mean_baseline)
    shifted = batch.replace(advantages=batch["advantages"] + 5.0 * batch.mask)
    _, grad = loss_and_grad(part, batch, moved(batch))
    _, same = loss_and_grad(part, shifted, moved(batch))
    torch.testing.assert_close(same, grad)


@every_regression
def test_unscored_rollouts_count_nowhere(part: Any) -> None:
    batch = credited(ragged_batch(), group_mean_baseline)
    known = torch.arange(len(batch)) % 4 != 1
    partly = batch.replace(rewards=batch.rewards.masked_fill(~known, float("nan")))
    loss, grad = loss_and_grad(part, partly, moved(batch))
    alone, grad_alone = loss_and_grad(part, batch.select(known), moved(batch)[known])
    torch.testing.assert_close(loss, alone)
    torch.testing.assert_close(grad[known], grad_alone)
    assert (grad[~known] == 0).all()


@every_regression
def test_a_rollout_of_two_rows_is_one_trajectory(part: Any) -> None:
    whole = ragged_batch()
    whole = credited(whole.select(whole.group == 3), group_mean_baseline)
    head, tail = whole.mask.clone(), whole.mask.clone()
    head[:, 2:], tail[:, :2] = False, False
    both = torch.arange(len(whole)).repeat_interleave(2)
    cut = whole.select(both).replace(mask=torch.stack([head, tail], 1).flatten(0, 1))
    loss, grad = loss_and_grad(part, whole, moved(whole))
    cut_loss, cut_grad = loss_and_grad(part, cut, moved(whole)[both])
    torch.testing.assert_close(cut_loss, loss)
    torch.testing.assert_close(cut_grad[::2] + cut_grad[1::2], grad)


@every_regression
def test_selection_weights_scale_a_rollouts_term(part: Any) -> None:
    batch = credited(ragged_batch(), group_mean_baseline)
    doubled = batch.replace(weights=torch.full_like(batch["logp_old"], 2.0))
    loss, _ = loss_and_grad(part, batch, moved(batch))
    twice, _ = loss_and_grad(part, doubled, moved(batch))
    torch.testing.assert_close(twice, 2 * loss)


def test_standardised_regression_has_a_finite_gradient_on_policy() -> None:
    batch = credited(ragged_batch(), group_mean_baseline)
    _, grad = loss_and_grad(StandardisedRegression(), batch, batch["logp_old"])
    live = batch.mask & (batch["advantages"] != 0)
    assert grad.isfinite().all()
    assert (grad[live].sign() == -batch["advantages"][live].sign()).all()


@pytest.mark.parametrize("part", [OptimalAdvantageRegression(), FlowBalance()])
def test_unscored_rollouts_get_no_gradient_from_losses_per_rollout(part: Any) -> None:
    batch = ragged_batch()
    unknown = torch.arange(len(batch)) % 4 == 1
    batch = batch.replace(rewards=batch.rewards.masked_fill(unknown, float("nan")))
    leaf, values = moved(batch).requires_grad_(), batch["values"].clone().requires_grad_()
    objective = Objective(surrogate=part, aggregation=sequence_mean_token_mean)
    loss = objective(Evaluation(leaf, values=values), batch).loss
    grad, _ = torch.autograd.grad(loss, [leaf, values], allow_unused=True)
    assert (grad[unknown] == 0).all()
    assert grad[~unknown & batch.mask.any(1)].abs().sum() > 0


def test_flow_balance_trains_log_z_at_the_first_token_only() -> None:
    batch = ragged_batch()
    values = batch["values"].clone().requires_grad_()
    objective = Objective(surrogate=FlowBalance(), aggregation=sequence_mean_token_mean)
    loss = objective(Evaluation(moved(batch), values=values), batch).loss
    (grad,) = torch.autograd.grad(loss, values)
    assert (grad[:, 1:] == 0).all()
    assert (grad[batch.mask[:, 0], 0] != 0).all()


def test_trajectories_leave_out_what_does_not_train() -> None:
    batch = ragged_batch()
    rollouts = Trajectories.of(batch.replace(loss_mask=batch.mask & (batch.group != 90)[:, None]))
    assert len(rollouts) == 10  # without the empty rollout and the group of one
    assert rollouts.groups == 3
    assert rollouts.size(batch.rewards).tolist() == [
        {7: 4, 3: 4, 12: 2}[g] for g in rollouts.pick(batch.group).tolist()
    ]
