"""Trust regions, ratios and clips: what laws and vectors don't show."""

from __future__ import annotations

import math

import pytest
import torch
from tests.laws.batches import ragged_batch
from torch import Tensor

from polyopt.batch import Batch
from polyopt.divergences import (
    K2,
    ForwardKL,
    ReverseKL,
    SlopedDivergence,
    UnnormalizedForwardKL,
    UnnormalizedReverseKL,
    exact_kl,
    k1,
    k2,
    k3,
    straight_through,
)
from polyopt.draws import uniforms
from polyopt.levels import RolloutMax, RolloutMean, rollout_rows, rollout_sum
from polyopt.objectives.adaptive_clips import (
    BalancedClip,
    SecondMomentClip,
    SecondMomentMask,
    harmful,
    second_moment,
)
from polyopt.objectives.aggregation import ConstantLength, LengthWeighted
from polyopt.objectives.covariance import ClipCov, KLCov, covariance
from polyopt.objectives.objective import Objective
from polyopt.objectives.one_token import ExpectedOneTokenRollout, OneTokenRollout
from polyopt.objectives.protocol import Evaluation
from polyopt.objectives.ratios import GeometricMeanRatio, sequence_ratio
from polyopt.objectives.soft_clips import GradientPreservingClip, QuadraticSurrogate
from polyopt.objectives.surrogates import ClippedImportanceWeight, ClippedSurrogate
from polyopt.objectives.trust_regions import ClipMask, StepDivergence

DIVERGENCES: list[SlopedDivergence] = [
    K2(),
    ForwardKL(),
    ReverseKL(),
    UnnormalizedForwardKL(),
    UnnormalizedReverseKL(),
]


def moved(batch: Batch, scale: float = 0.3, seed: int = 5) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    noise = torch.randn(batch.mask.shape, generator=draw, dtype=torch.float64)
    return batch["logp_old"] + noise * scale


def gradient(objective: Objective, batch: Batch, logp: Tensor) -> Tensor:
    leaf = logp.clone().requires_grad_()
    (grad,) = torch.autograd.grad(objective(Evaluation(leaf), batch).loss, leaf)
    return grad


@pytest.mark.parametrize("divergence", DIVERGENCES, ids=lambda d: type(d).__name__)
def test_slopes_are_derivatives(divergence: SlopedDivergence) -> None:
    d = torch.linspace(-3, 3, 13, dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(divergence(d).sum(), d)
    torch.testing.assert_close(found, divergence.slope(d.detach()))


@pytest.mark.parametrize(
    "divergence",
    [ReverseKL(), UnnormalizedForwardKL(), UnnormalizedReverseKL()],
    ids=lambda d: type(d).__name__,
)
def test_estimates_average_to_the_exact_divergence_under_the_old_policy(
    divergence: SlopedDivergence,
) -> None:
    draw = torch.Generator().manual_seed(0)
    new, old = torch.randn(2, 6, generator=draw, dtype=torch.float64)
    d, weight = new.log_softmax(-1) - old.log_softmax(-1), old.softmax(-1)
    reverse = "Reverse" in type(divergence).__name__
    exact = exact_kl(new, old) if reverse else exact_kl(old, new)
    torch.testing.assert_close((weight * divergence(d)).sum(), exact)


def test_k1_k2_and_k3_as_losses_pull_as_their_docstrings_say() -> None:
    """Expected gradients under the policy: 0, that of KL(pi || ref), that of KL(ref || pi)."""
    draw = torch.Generator().manual_seed(1)
    logits, other = torch.randn(2, 5, generator=draw, dtype=torch.float64)
    logits.requires_grad_()
    logp, logp_ref = logits.log_softmax(-1), other.log_softmax(-1)
    probability = logp.detach().exp()

    def pull(loss: Tensor) -> Tensor:
        return torch.autograd.grad(loss, logits, retain_graph=True)[0]

    reverse, forward = pull(exact_kl(logits, other)), pull(exact_kl(other, logits))
    nothing = torch.zeros_like(reverse)
    torch.testing.assert_close(pull((probability * k1(logp, logp_ref)).sum()), nothing)
    torch.testing.assert_close(pull((probability * k2(logp, logp_ref)).sum()), reverse)
    torch.testing.assert_close(pull((probability * k3(logp, logp_ref)).sum()), forward)
    both = straight_through(k3(logp, logp_ref), k2(logp, logp_ref))
    torch.testing.assert_close((probability * both).sum(), exact_kl(logits, other))
    torch.testing.assert_close(pull((probability * both).sum()), reverse)


def test_rollout_values_span_all_rows_of_a_rollout() -> None:
    batch = Batch.of(mask=torch.tensor([[1, 1], [1, 0], [0, 0]]), rollout=torch.tensor([4, 4, 9]))
    values = torch.tensor([[1.0, 2.0], [6.0, 50.0], [7.0, 7.0]])
    assert rollout_sum(values, batch).tolist() == [9.0, 9.0, 0.0]
    assert RolloutMean()(values, batch)[:, 0].tolist() == [3.0, 3.0, 0.0]
    assert RolloutMax()(values, batch)[:, 0].tolist() == [6.0, 6.0, 0.0]
    assert rollout_rows(batch, values).tolist() == [2.0, 2.0, 1.0]


def test_geometric_mean_ratio_without_a_bound_is_the_sequence_ratio() -> None:
    batch = ragged_batch()
    logp = moved(batch)
    wide = GeometricMeanRatio(50.0, 50.0)(logp, batch)
    torch.testing.assert_close(wide, sequence_ratio(logp, batch))


def test_a_bounded_weight_keeps_the_gradient_that_a_clip_would_end() -> None:
    one = torch.ones(1, 1, dtype=torch.float64)
    batch = Batch.of(advantages=one, logp_old=-2 * one)
    far = torch.full((1, 1), -1.0, dtype=torch.float64)
    assert gradient(Objective(surrogate=ClippedSurrogate()), batch, far).item() == 0
    weighted = Objective(surrogate=ClippedImportanceWeight(clip_high=0.2))
    assert gradient(weighted, batch, far).item() == pytest.approx(-1.2)
    preserving = Objective(surrogate=GradientPreservingClip(0.2, 0.28))
    assert gradient(preserving, batch, far).item() == pytest.approx(-1.28)
    masked = Objective(surrogate=ClippedImportanceWeight(), trust_region=(ClipMask(),))
    assert gradient(masked, batch, far).item() == 0


def test_the_quadratic_surrogate_turns_exactly_at_its_range() -> None:
    credit = torch.tensor([[1.0, -2.0]], dtype=torch.float64)
    batch = Batch.of(advantages=credit, logp_old=torch.zeros_like(credit))
    turning = torch.tensor([[1.2, 0.8]], dtype=torch.float64).log()
    found = gradient(Objective(surrogate=QuadraticSurrogate(0.2)), batch, turning)
    torch.testing.assert_close(found, torch.zeros_like(found))


def test_the_second_moment_mask_keeps_the_longest_prefix_within_its_budget() -> None:
    batch = Batch.of(advantages=torch.ones(1, 5).double(), logp_old=torch.zeros(1, 5).double())
    d = torch.tensor([[0.1, -0.9, 0.4, 0.2, 0.6]], dtype=torch.float64)
    kept = SecondMomentMask(0.0701).kept(d, batch)
    assert kept.tolist() == [[True, True, True, True, False]]  # -0.9 isn't harmful at all
    assert float(second_moment(d, harmful(d, batch) & kept)) == pytest.approx(0.07)


def test_capping_at_the_second_moment_bound_meets_the_budget() -> None:
    batch = ragged_batch()
    d = moved(batch, 0.6) - batch["logp_old"]
    part, chosen = SecondMomentClip(0.04), harmful(d, batch)
    tau = part.bound(d, batch)
    assert float(second_moment(d, chosen)) > 0.04
    assert float(second_moment(d.clamp(-tau, tau), chosen)) <= 0.04
    assert part.bound(d * 0.01, batch) == math.inf


def test_a_balanced_clip_stands_still_without_negative_credit() -> None:
    batch = ragged_batch()
    batch = batch.replace(advantages=batch["advantages"].abs())
    part = BalancedClip()
    assert part.bounds(moved(batch) - batch["logp_old"], batch) == (part.low, part.high)


def test_covariance_averages_to_that_of_credit_and_log_probability() -> None:
    batch = ragged_batch()
    logp, mask = moved(batch), batch.mask
    pairs = torch.stack([batch["advantages"][mask], logp[mask]])
    expected = torch.cov(pairs, correction=0)[0, 1]
    torch.testing.assert_close(covariance(logp, batch)[mask].mean(), expected)


def test_clip_cov_draws_the_same_tokens_whatever_the_order_of_rows() -> None:
    batch, part = ragged_batch(), ClipCov(share=0.1, low=-10.0, high=10.0)
    objective = Objective(surrogate=ClippedSurrogate(), trust_region=(part,))
    logp, order = moved(batch), torch.randperm(12, generator=torch.Generator().manual_seed(2))
    found = gradient(objective, batch, logp)
    again = gradient(objective, batch.select(order), logp[order])
    torch.testing.assert_close(again, found[order])
    silent = (found == 0) & batch.mask
    assert int(silent.sum()) >= part.budget(batch) == int(0.1 * int(batch.mask.sum()))


def test_draws_look_uniform_and_differ_between_rollouts() -> None:
    drawn = uniforms(Batch.of(mask=torch.ones(200, 50), rollout=torch.arange(200) + 10**9))
    assert 0 <= float(drawn.min()) < 0.001
    assert 0.999 < float(drawn.max()) < 1
    assert float(drawn.mean()) == pytest.approx(0.5, abs=0.01)
    assert len(torch.unique(drawn)) == drawn.numel()


def test_kl_cov_penalises_the_highest_covariances_and_no_others() -> None:
    batch, logp = ragged_batch(), moved(ragged_batch())
    chosen = KLCov(share=0.2).chosen(logp, batch)
    cov = covariance(logp, batch)
    assert int(chosen.sum()) == int(0.2 * int(batch.mask.sum()))
    assert float(cov[chosen].min()) >= float(cov[batch.mask & ~chosen].max())


def test_a_column_replaces_the_coefficient_of_a_step_penalty() -> None:
    batch, logp = ragged_batch(), moved(ragged_batch())
    still = batch.replace(advantages=torch.zeros_like(logp))
    weighed = still.replace(step_coefficient=torch.full((12,), 2.0, dtype=torch.float64))
    strong = Objective(surrogate=ClippedSurrogate(), trust_region=(StepDivergence(K2(), 2.0),))
    weak = Objective(surrogate=ClippedSurrogate(), trust_region=(StepDivergence(K2(), 0.1),))
    torch.testing.assert_close(gradient(weak, weighed, logp), gradient(strong, still, logp))


def test_length_weights_with_exponent_0_are_constant_length() -> None:
    batch = ragged_batch()
    batch = batch.select(batch.mask.any(1))
    torch.testing.assert_close(LengthWeighted(0.0)(batch), ConstantLength()(batch))


def test_with_exponent_1_every_rollout_has_the_same_total_weight() -> None:
    totals = LengthWeighted(1.0)(ragged_batch()).sum(1)
    live = totals[totals > 0]
    torch.testing.assert_close(live, live[:1].expand_as(live))


def test_one_token_rollouts_average_to_their_expectation() -> None:
    """Sampling is a way to compute the surrogate's gradient, not another method."""
    draw = torch.Generator().manual_seed(3)
    logits = torch.randn(1, 6, generator=draw, dtype=torch.float64).requires_grad_()
    target, part = torch.tensor([2]), OneTokenRollout(-0.1)
    (exact,) = torch.autograd.grad(part.expected(logits, target).sum(), logits)
    logp = logits.log_softmax(-1)[:, 2:3]
    batch = Batch.of(advantages=torch.ones(1, 1).double(), logp_old=logp.detach())
    loss = Objective(surrogate=ExpectedOneTokenRollout(-0.1))(Evaluation(logp), batch).loss
    (found,) = torch.autograd.grad(loss, logits)
    torch.testing.assert_close(found, exact)
    drawn = logits.detach().softmax(-1).multinomial(200_000, replacement=True, generator=draw)
    (sampled,) = torch.autograd.grad(part(logits, drawn, target).sum(), logits)
    torch.testing.assert_close(sampled, exact, atol=5e-3, rtol=0)
