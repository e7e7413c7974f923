"""Contrasts, preferences, classifiers and softmaxes over rollouts, against their definitions."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.laws.batches import ragged_batch
from torch import Tensor

from polyopt.advantages.supervised import SuccessRateWeight
from polyopt.advantages.trajectories import Trajectories
from polyopt.batch import Batch
from polyopt.objectives.aggregation import token_mean
from polyopt.objectives.classification import MeanLogProb, NegativeAware, OutcomeClassifier
from polyopt.objectives.contrastive import (
    KLConstraint,
    LengthTiltedContrast,
    LikelihoodContrast,
    RatioContrast,
)
from polyopt.objectives.objective import Objective
from polyopt.objectives.plackett_luce import TrajectorySoftmax
from polyopt.objectives.preferences import PreferencePairs
from polyopt.objectives.protocol import Evaluation
from polyopt.rewards.levels import preference_levels

CONTRASTS: list[Any] = [LikelihoodContrast(), RatioContrast(), LengthTiltedContrast()]


def moved(batch: Batch) -> Tensor:
    draw = torch.Generator().manual_seed(3)
    noise = torch.randn(batch.mask.shape, generator=draw, dtype=torch.float64)
    return batch["logp_old"] + 0.3 * noise


def value(part: Any, batch: Batch, logp: Tensor) -> Tensor:
    return Objective(surrogate=part)(Evaluation(logp), batch).loss


@pytest.mark.parametrize("part", CONTRASTS, ids=lambda part: type(part).__name__)
def test_a_prompt_without_both_outcomes_gives_nothing_but_counts(part: Any) -> None:
    batch = ragged_batch()
    both = batch.select(torch.isin(batch.group, torch.tensor([3, 12])))  # 12 is all right
    mixed = both.group == 3
    logp = moved(both)
    alone = value(part, both.select(mixed), logp[mixed])
    torch.testing.assert_close(value(part, both, logp), alone / 2)


def test_the_soft_mean_of_wrong_answers_ends_in_their_mean() -> None:
    batch = ragged_batch()
    batch = batch.replace(accuracy=1 - batch["accuracy"])  # several wrong answers per prompt
    logp = moved(batch)
    plain = value(LikelihoodContrast(tau=math.inf), batch, logp)
    torch.testing.assert_close(value(LikelihoodContrast(tau=1e7), batch, logp), plain)
    assert value(LikelihoodContrast(tau=0.1), batch, logp) > plain


def test_short_right_answers_weigh_more() -> None:
    batch = ragged_batch()
    rollouts = Trajectories.of(batch)
    part = LengthTiltedContrast(temperature=0.5)
    weights = part.weights(rollouts, batch.rewards)
    lengths = rollouts.tokens(batch["logp_old"])
    right = (weights > 0) & (rollouts.pick(batch.group) == 7)
    order = lengths[right].argsort()
    assert (weights[right][order].diff() <= 0).all()
    torch.testing.assert_close(weights[right].sum(), torch.tensor(1.0, dtype=torch.float64))


def test_the_constraint_has_the_gradient_of_a_squared_hinge() -> None:
    batch = ragged_batch()
    batch = batch.replace(advantages=torch.zeros_like(batch["advantages"]))
    logp = (batch["logp_old"] - 0.05).requires_grad_()
    part = KLConstraint(delta=0.01, coefficient=7.0)
    loss = Objective(kl=part, aggregation=token_mean)(Evaluation(logp), batch).loss
    hinge = 3.5 * (part.kl(logp, batch) - 0.01).clamp(min=0).square()
    (found,) = torch.autograd.grad(loss, logp)
    (expected,) = torch.autograd.grad(hinge, logp)
    torch.testing.assert_close(found, expected)
    assert Objective(kl=part)(Evaluation(batch["logp_old"] - 0.005), batch).loss == 0


def test_preferences_are_the_mean_over_all_ordered_pairs() -> None:
    batch = ragged_batch()
    logp = moved(batch)
    gap = ((logp - batch["logp_ref"]) * batch.mask).sum(1) / batch.mask.sum(1).clamp(min=1)
    level, live = batch["level"], batch.mask.any(1)
    terms = []
    for i in range(len(batch)):
        for j in range(len(batch)):
            if batch.group[i] == batch.group[j] and level[i] < level[j] and live[i] and live[j]:
                scale = 0.1 * (2.5 if level[i] == 1 else 1.0)
                terms.append(-torch.sigmoid(scale * (gap[i] - gap[j])).log())
    torch.testing.assert_close(value(PreferencePairs(), batch, logp), torch.stack(terms).mean())


def test_levels_order_right_wrong_unreadable_and_malformed_answers() -> None:
    batch = Batch.of(
        rewards=torch.tensor([1.0, 0.0, 0.0, 1.0]),
        **{
            "reward/answer": torch.tensor([1.0, 1.0, 0.0, 1.0]),
            "reward/format": torch.tensor([1.0, 1.0, 1.0, 0.0]),
        },
    )
    assert preference_levels(batch)["level"].tolist() == [1, 2, 3, 4]


def test_the_classifier_knows_nothing_on_policy() -> None:
    batch = ragged_batch()
    loss = value(OutcomeClassifier(), batch, batch["logp_old"])
    torch.testing.assert_close(loss, torch.tensor(math.log(2), dtype=torch.float64))


def test_the_classifiers_proxy_can_be_a_likelihood() -> None:
    batch = ragged_batch()
    by_likelihood = OutcomeClassifier(proxy=MeanLogProb())
    assert value(by_likelihood, batch, batch["logp_old"]) != pytest.approx(math.log(2))


def test_negative_aware_loss_meets_grpo_on_policy() -> None:
    batch = ragged_batch()
    batch = batch.select(batch.group == 3)
    estimator = SuccessRateWeight(rarity=0.5, boost=0.5)
    batch = batch.replace(**estimator.provide(batch))
    batch = batch.replace(advantages=estimator(batch["advantages"], batch))
    logp = batch["logp_old"].clone().requires_grad_()
    objective = Objective(surrogate=NegativeAware(), aggregation=token_mean)
    (grad,) = torch.autograd.grad(objective(Evaluation(logp), batch).loss, logp)
    z_score = (batch.rewards - batch.rewards.mean()) / batch.rewards.std(unbiased=False)
    torch.testing.assert_close(grad, -z_score[:, None] * batch.mask / batch.mask.sum())


def test_the_softmax_over_trajectories_centres_rewards_by_itself() -> None:
    batch = ragged_batch()
    live = batch.select((batch.group == 3) & batch.mask.any(1))
    live = live.replace(advantages=live.rewards[:, None] * live.mask)
    logp = moved(live).requires_grad_()
    part = TrajectorySoftmax(entropy=0.0, kl=0.0)
    (grad,) = torch.autograd.grad(value(part, live, logp), logp)
    weights = (logp.detach() * live.mask).sum(1).softmax(0)
    centred = live.rewards - (weights * live.rewards).sum()
    torch.testing.assert_close(grad, -(weights * centred)[:, None] * live.mask)
