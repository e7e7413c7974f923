"""Off-policy corrections, budgets and control rollouts: what laws and vectors don't show."""

from __future__ import annotations

import torch
from tests.laws.batches import ragged_batch

from polyopt.batch import FORCED, Batch
from polyopt.divergences import bounded_exp
from polyopt.levels import RolloutMean
from polyopt.objectives.objective import Objective
from polyopt.objectives.protocol import Evaluation
from polyopt.objectives.regularized import DecoupledClip
from polyopt.objectives.surrogates import ClippedImportanceWeight, ClippedSurrogate, PolicyGradient
from polyopt.rewards.controls import controls_apart
from polyopt.rewards.kl import AdaptiveKLInReward, DivergenceInReward
from polyopt.rewards.shaping import KLInReward
from polyopt.selection.budgets import TokenBudget
from polyopt.selection.corrections import (
    RejectByRatio,
    TruncatedIS,
    sampler_as_old,
    unit_mean_rollout_weights,
    unit_mean_token_weights,
)
from polyopt.selection.entropy_weights import EntropyGuidedRollouts, EntropyGuidedTokens
from polyopt.selection.golden import gold_where_all_failed
from polyopt.selection.windows import StalenessLimit, admissible, newest_tokens


def mismatched(seed: int = 0) -> Batch:
    batch = ragged_batch(seed)
    draw = torch.Generator().manual_seed(seed + 1)
    gap = torch.randn(batch.mask.shape, generator=draw, dtype=torch.float64)
    return batch.replace(logp_sampler=batch["logp_old"] + 0.4 * gap)


def grad(objective: Objective, batch: Batch, logp: torch.Tensor) -> torch.Tensor:
    leaf = logp.clone().requires_grad_()
    return torch.autograd.grad(objective(Evaluation(leaf), batch).loss, leaf)[0]


def test_without_a_mismatch_every_weight_is_1() -> None:
    batch = TruncatedIS()(ragged_batch())
    torch.testing.assert_close(batch["weights"], batch.mask.double())


def test_corrections_multiply_the_weights_that_are_there() -> None:
    batch = mismatched()
    halved = batch.replace(weights=torch.full(batch.mask.shape, 0.5, dtype=torch.float64))
    expected = 0.5 * TruncatedIS()(batch)["weights"]
    torch.testing.assert_close(TruncatedIS()(halved)["weights"], expected)


def test_an_infinite_mismatch_is_no_correction_rather_than_nan() -> None:
    batch = mismatched()
    broken = batch["logp_sampler"].clone()
    broken[0, 0] = -torch.inf
    weights = TruncatedIS()(batch.replace(logp_sampler=broken))["weights"]
    assert weights[0, 0] == 1
    assert weights.isfinite().all()


def test_normalised_weights_have_mean_1() -> None:
    batch = unit_mean_token_weights(TruncatedIS()(mismatched()))
    torch.testing.assert_close(batch["weights"][batch.mask].mean(), torch.tensor(1.0).double())
    level = TruncatedIS(level=RolloutMean())
    batch = unit_mean_rollout_weights(level(mismatched()))
    each = batch["weights"].sum(1) / batch.mask.sum(1).clamp(min=1)
    torch.testing.assert_close(each[batch.mask.any(1)].mean(), torch.tensor(1.0).double())


def test_truncated_weights_on_policy_are_cispo_around_the_sampler() -> None:
    """Two papers, one rule: -A logp min(pi / sampler, C)."""
    batch = mismatched()
    tis = Objective(surrogate=PolicyGradient())
    cispo = Objective(surrogate=ClippedImportanceWeight(clip_high=1.0))
    logp = batch["logp_old"]
    one = grad(tis, TruncatedIS(2.0)(batch), logp)
    torch.testing.assert_close(grad(cispo, sampler_as_old(batch), logp), one)


def test_the_decoupled_clip_is_the_clip_times_the_weight_of_the_old_policy() -> None:
    batch = mismatched()
    logp = batch["logp_old"] + 0.2 * torch.randn(batch.mask.shape, dtype=torch.float64)
    decoupled = grad(Objective(surrogate=DecoupledClip(cap=1e6)), batch, logp)
    clipped = grad(Objective(surrogate=ClippedSurrogate()), TruncatedIS(cap=1e9)(batch), logp)
    torch.testing.assert_close(clipped, decoupled)


def test_rejection_bounds_the_sampler_over_the_trainer() -> None:
    batch = mismatched()
    kept = RejectByRatio(most=1.5)(batch).loss_mask
    ratio = bounded_exp(batch["logp_sampler"] - batch["logp_old"])
    expected = batch.mask & (ratio <= 1.5) & (ratio >= 1 / 1.5)
    assert (kept == expected).all()


def test_a_token_budget_is_filled_exactly_and_cuts_at_most_one_rollout() -> None:
    batch = ragged_batch()
    kept = TokenBudget(20)(batch).loss_mask
    assert int(kept.sum()) == 20
    partly = kept.any(1) & (kept != batch.mask).any(1)
    assert int(partly.sum()) <= 1


def test_equal_credit_and_entropy_give_weights_of_1() -> None:
    batch = ragged_batch()
    batch = batch.select((batch.group == 7) | (batch.group == 3)).select(torch.tensor([0, 1, 2, 3]))
    flat = torch.zeros_like(batch["entropy"])
    batch = batch.replace(mask=torch.ones_like(batch.mask), advantages=flat, entropy=flat)
    for part in (EntropyGuidedTokens(), EntropyGuidedRollouts()):
        torch.testing.assert_close(part(batch)["weights"], torch.ones(4, 7).double())


def test_a_rollout_of_two_rows_counts_once_in_its_group() -> None:
    batch = Batch.of(
        mask=torch.ones(3, 1),
        rollout=torch.tensor([0, 1, 1]),
        advantages=torch.zeros(3, 1).double(),
        entropy=torch.zeros(3, 1).double(),
    )
    weights = EntropyGuidedRollouts()(batch)["weights"]
    torch.testing.assert_close(weights, torch.ones(3, 1).double())


def test_only_the_newest_window_trains_and_stale_rollouts_leave() -> None:
    version = torch.tensor([[3, 3, 7], [7, 7, 7], [5, 6, 7]])
    batch = Batch.of(mask=torch.ones(3, 3), provenance=version)
    assert newest_tokens(batch).loss_mask.tolist() == (version == 7).tolist()
    assert StalenessLimit(2)(batch).tolist() == [False, True, True]
    assert admissible(version=7, staleness=2, batch_size=10, submitted=95) == 5


def test_controls_form_groups_of_their_own() -> None:
    batch = ragged_batch()
    apart = controls_apart(batch)
    control = batch["control"] > 0
    assert not set(apart.group[control].tolist()) & set(apart.group[~control].tolist())
    assert (apart.group[~control] == batch.group[~control]).all()


def test_a_golden_answer_replaces_one_rollout_only_where_all_failed() -> None:
    batch = Batch.of(
        mask=torch.ones(7, 1),
        group=torch.tensor([0, 0, 1, 1, 0, 1, 2]),
        rollout=torch.tensor([10, 11, 12, 13, 14, 15, 16]),
        rewards=torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0]),
        demonstration=torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0]),
    )
    kept = gold_where_all_failed(batch)
    assert kept.tolist() == [True, False, True, True, True, False, True]


def test_tokens_that_nobody_sampled_have_no_mismatch() -> None:
    batch = mismatched()
    given = batch["provenance"].clone()
    given[0] = FORCED
    weights = TruncatedIS()(batch.replace(provenance=given))["weights"]
    assert (weights[0][batch.mask[0]] == 1).all()


def test_k1_in_the_reward_is_the_plain_penalty() -> None:
    batch = ragged_batch()
    plain, general = KLInReward(0.05)(batch), DivergenceInReward(0.05)(batch)
    torch.testing.assert_close(general.rewards, plain.rewards)


def test_an_adaptive_coefficient_grows_above_its_target_and_survives_a_checkpoint() -> None:
    batch = ragged_batch()
    far = batch.replace(logp_ref=batch["logp_old"] - 1.0)
    part = AdaptiveKLInReward(0.1, target=0.01, horizon=100.0)
    part(far)
    assert part.current == 0.1 * (1 + 0.2 * len(batch) / 100)
    other = AdaptiveKLInReward(0.1, target=0.01, horizon=100.0)
    other.load_state_dict(part.state_dict())
    assert other.current == part.current
