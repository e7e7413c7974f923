"""Objectives with teachers, demonstrations, hints and whole distributions."""

from __future__ import annotations

import torch
from tests.laws.batches import ragged_batch

from polyopt.batch import Batch
from polyopt.objectives.aggregation import token_mean
from polyopt.objectives.bellman import UniformPolicyRegression, uniform_value
from polyopt.objectives.demonstrations import (
    GroupAlignment,
    MixedPolicySurrogate,
    hinted_ratio,
)
from polyopt.objectives.distillation import TeacherKL
from polyopt.objectives.heterogeneous import HeterogeneousClip
from polyopt.objectives.mirror_descent import mirror_descent_loss
from polyopt.objectives.objective import Objective
from polyopt.objectives.protocol import Evaluation
from polyopt.objectives.verification import VerdictLikelihood, verifier_score
from polyopt.rollouts.entropy_score import EntropyScale


def test_the_ratio_of_a_demonstrated_token_stays_below_four() -> None:
    batch = ragged_batch()
    shown = torch.ones_like(batch.rewards)
    old = torch.full_like(batch["logp_old"], -50.0)
    ones = torch.ones_like(old)
    batch = batch.replace(demonstration=shown, logp_old=old, advantages=ones)
    objective = Objective(surrogate=MixedPolicySurrogate(gamma=0.0), aggregation=token_mean)
    loss = objective(Evaluation(torch.zeros_like(old)), batch).loss
    torch.testing.assert_close(loss, torch.tensor(-4.0, dtype=torch.float64))


def test_confident_demonstrated_tokens_stop_mattering() -> None:
    batch = ragged_batch().replace(demonstration=torch.ones(12, dtype=torch.float64))
    logp = torch.zeros_like(batch["logp_old"]).requires_grad_()
    loss = Objective(surrogate=MixedPolicySurrogate())(Evaluation(logp), batch).loss
    (grad,) = torch.autograd.grad(loss, logp)
    assert (grad == 0).all()


def test_alignment_without_a_demonstration_is_reinforce() -> None:
    batch = ragged_batch()
    batch = batch.select(batch.group == 3).replace(demonstration=torch.zeros(4))
    logp = batch["logp_old"].clone().requires_grad_()
    loss = Objective(surrogate=GroupAlignment())(Evaluation(logp), batch).loss
    (grad,) = torch.autograd.grad(loss, logp)
    length = batch.mask.sum(1, keepdim=True)
    credit = (batch["advantages"] * batch.mask).sum(1, keepdim=True) / length
    torch.testing.assert_close(grad, -credit / length / 4 * batch.mask)


def test_hinted_rows_are_compared_with_the_context_they_were_sampled_in() -> None:
    batch = ragged_batch()
    batch = batch.replace(logp_sampler=batch["logp_old"] - 1.0)
    found = hinted_ratio(batch["logp_old"], batch)
    hinted = batch["guided"] > 0
    torch.testing.assert_close(found[hinted], batch.mask[hinted].double())
    assert (found[~hinted] == 0.0).all()


def test_a_teacher_that_forbids_a_token_pulls_with_a_bounded_force() -> None:
    batch = ragged_batch()
    forbidden = torch.full_like(batch["logp_old"], -1e4)
    batch = batch.replace(logp_teacher=forbidden, teacher_weight=torch.ones_like(batch.rewards))
    loss = TeacherKL(least=-30.0)(Evaluation(torch.zeros_like(forbidden)), batch).loss
    assert float(loss.max()) == 450.0


def test_bellman_regression_is_reinforce_on_policy() -> None:
    batch = ragged_batch()
    uniform = batch["uniform_value_old"]
    logp = batch["logp_old"].clone().requires_grad_()
    objective = Objective(surrogate=UniformPolicyRegression(rho=0.5), aggregation=token_mean)
    (grad,) = torch.autograd.grad(
        objective(Evaluation(logp, uniform_value=uniform), batch).loss, logp
    )
    torch.testing.assert_close(grad, -batch["advantages"] * batch.mask / batch.mask.sum())


def test_the_next_place_of_a_token_is_the_next_trained_one() -> None:
    batch = Batch.of(
        mask=torch.tensor([[1, 0, 1, 1]]),
        logp_old=torch.zeros(1, 4),
        advantages=torch.zeros(1, 4),
        uniform_value_old=torch.zeros(1, 4),
    )
    uniform = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    assert UniformPolicyRegression().target(uniform, batch).tolist() == [[3.0, 0.0, 4.0, 0.0]]


def test_the_uniform_value_is_the_mean_log_probability() -> None:
    logits = torch.tensor([[0.0, 0.0], [2.0, 0.0]])
    expected = logits.log_softmax(-1).mean(-1)
    torch.testing.assert_close(uniform_value(logits), expected)
    assert uniform_value(logits)[0] > uniform_value(logits)[1]


def test_entropy_scores_reach_both_ends_and_pass_zero_at_the_pivot() -> None:
    entropy = torch.tensor([[0.1, 0.5, 1.0, 2.0, 4.0]])
    mask = torch.ones_like(entropy).bool()
    scores = EntropyScale.of(entropy, mask, quantile=0.5).scores(entropy)
    torch.testing.assert_close(scores[0, [0, 2, 4]], torch.tensor([-1.0, 0.0, 1.0]))
    assert (EntropyScale.of(torch.ones(1, 3), mask[:, :3]).scores(torch.ones(1, 3)) == 0).all()
    assert (EntropyScale.of(entropy, ~mask).scores(entropy) == 0).all()


def test_uncertain_tokens_have_room_above_and_certain_ones_below() -> None:
    low, high = HeterogeneousClip().ranges(torch.tensor([[-1.0, 0.0, 1.0]]))
    torch.testing.assert_close(low, torch.tensor([[0.4, 0.2, 0.2]]))
    torch.testing.assert_close(high, torch.tensor([[0.2, 0.2, 0.4]]))


def test_mirror_descent_starts_as_the_policy_gradient() -> None:
    logits = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    actions, advantages = torch.tensor([0, 1, 2]), torch.tensor([1.0, -1.0, 0.5])
    loss = mirror_descent_loss(logits, logits.detach(), actions, advantages, 0.5)
    (grad,) = torch.autograd.grad(loss, logits)
    taken = logits.log_softmax(-1).gather(1, actions[:, None])[:, 0]
    (expected,) = torch.autograd.grad(-(taken * advantages).mean(), logits)
    torch.testing.assert_close(grad, expected)


def test_a_verifier_that_is_sure_and_right_costs_nothing() -> None:
    logits = torch.tensor([[40.0, 0.0], [0.0, 40.0]])
    right = torch.tensor([True, False])
    torch.testing.assert_close(VerdictLikelihood()(logits, right), torch.tensor(0.0))
    assert float(VerdictLikelihood(0.5)(logits, ~right)) == 20.0
    assert verifier_score(logits).round().tolist() == [1.0, 0.0]
    assert float(VerdictLikelihood()(logits[:0], right[:0])) == 0.0
