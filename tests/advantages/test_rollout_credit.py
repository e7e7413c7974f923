"""Credit for whole rollouts: what laws and vectors don't cover."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from polyopt.advantages.baselines import GroupZScore, group_mean_baseline
from polyopt.advantages.best_of_k import BestOfKZScore, best_of_k, leave_one_out, marginal, max_at_k
from polyopt.advantages.consistency import LocalAndGlobal
from polyopt.advantages.halves import EntropyHalves
from polyopt.advantages.histories import SingleStreamBaseline, SmoothStandardisation
from polyopt.advantages.reference_points import (
    AdvantageMomentum,
    ConstantBaseline,
    ForwardCorrection,
    LengthWeightedBaseline,
    QuantileBaseline,
    VirtualRewards,
)
from polyopt.advantages.risk import LEVELS, MixedValueAtRisk, Papers, bundles_of
from polyopt.advantages.scales import BatchScale, BetaScale, NoiseAwareWeight
from polyopt.advantages.sets import PolychromicSets
from polyopt.advantages.uncertainty import EntropyScale, SemanticEntropyDiscount
from polyopt.advantages.zero_variance import EntropyForSilentGroups
from polyopt.batch import Batch, Prompt
from polyopt.errors import DataError, RecipeError
from polyopt.groups import (
    group_quantile,
    group_quantile_step,
    group_rank,
    group_std,
    subgroups,
)
from polyopt.objectives.aggregation import token_mean
from polyopt.objectives.best_of_k import OffPolicyBestOfK, exact, first_order
from polyopt.objectives.objective import Objective
from polyopt.objectives.protocol import Evaluation
from polyopt.objectives.surrogates import ClippedSurrogate
from polyopt.objectives.thoughts import thought_mean_answer_mean
from polyopt.rollout_table import RolloutTable

F64 = torch.float64


def rows(rewards: list[float], group: list[int] | None = None, width: int = 1) -> Batch:
    """Rollouts of `width` tokens with given rewards."""
    return Batch.of(
        mask=torch.ones(len(rewards), width),
        rewards=torch.tensor(rewards, dtype=F64),
        group=torch.zeros(len(rewards)) if group is None else torch.tensor(group),
    )


def credit(part: object, batch: Batch) -> Tensor:
    """Credit of the first token of each row."""
    zeros = torch.zeros(batch.mask.shape, dtype=F64)
    return part(zeros, batch)[:, 0]  # type: ignore[operator, no-any-return]


# --- shared ingredients -------------------------------------------------------------------------


def test_a_rollout_of_several_rows_counts_once() -> None:
    batch = rows([1.0, 1.0, 0.0, 0.5], [0, 0, 0, 0]).replace(rollout=torch.tensor([5, 5, 2, 3]))
    single = rows([1.0, 0.0, 0.5])
    expected = credit(BatchScale(), single)
    torch.testing.assert_close(credit(BatchScale(), batch), expected[[0, 0, 1, 2]])


def test_token_statistics_gather_over_the_rows_of_a_rollout() -> None:
    batch = rows([1.0, 1.0, 0.0], width=2).replace(rollout=torch.tensor([4, 4, 9]))
    table = RolloutTable.of(batch)
    values = torch.tensor([[1.0, 2.0], [3.0, 6.0], [5.0, 5.0]], dtype=F64)
    assert table.lengths.tolist() == [4, 2]
    assert table.token_mean(values).tolist() == [3.0, 5.0]


def test_group_quantile_is_that_of_torch_for_every_group() -> None:
    draw = torch.Generator().manual_seed(0)
    values = torch.rand(40, generator=draw, dtype=F64)
    index = torch.randint(0, 5, (40,), generator=draw)
    for level in (0.1, 0.4, 0.75):
        found = group_quantile(values, index, level)
        for g in range(5):
            expected = values[index == g].quantile(level)
            torch.testing.assert_close(found[index == g], expected.expand_as(found[index == g]))


def test_step_quantile_is_the_smallest_value_that_covers_the_level() -> None:
    values = torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0], dtype=F64)
    index = torch.zeros(5, dtype=torch.long)
    assert group_quantile_step(values, index, 0.4)[0] == 0.0  # exactly 2 of 5
    assert group_quantile_step(values, index, 0.41)[0] == 1.0


def test_ranks_count_within_groups_and_ties_keep_their_order() -> None:
    values = torch.tensor([3.0, 1.0, 3.0, 2.0, 1.0])
    index = torch.tensor([0, 1, 0, 0, 1])
    assert group_rank(values, index).tolist() == [1, 0, 2, 0, 1]


def test_equal_labels_of_different_groups_are_different_subgroups() -> None:
    found = subgroups(torch.tensor([7, 7, 7, 2]), torch.tensor([0, 0, 1, 1]))
    assert found[0] == found[1]
    assert len({int(found[0]), int(found[2]), int(found[3])}) == 3


# --- baselines and scales -----------------------------------------------------------------------


def test_length_weighted_credit_is_balanced_over_tokens() -> None:
    batch = rows([1.0, 0.0, 0.3], width=4)
    mask = torch.tensor([[1, 0, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]).bool()
    batch = batch.replace(mask=mask)
    advantages = LengthWeightedBaseline()(torch.zeros(3, 4), batch)
    assert advantages.sum().abs() < 1e-12


def test_quantile_baseline_has_two_regimes() -> None:
    hard, easy = rows([1.0, 0.0, 0.0, 0.0, 0.0]), rows([1.0, 1.0, 1.0, 1.0, 0.0])
    assert (credit(QuantileBaseline(), hard) > 0).tolist() == [True, *[False] * 4]
    assert (credit(QuantileBaseline(), easy) < 0).tolist() == [*[False] * 4, True]
    assert (credit(QuantileBaseline(), easy)[:4] == 0).all()


def test_virtual_rewards_equal_a_z_score_over_the_longer_group() -> None:
    batch = rows([0.2, 0.9, 0.4])
    longer = torch.tensor([0.2, 0.9, 0.4, 1.0, 1.0], dtype=F64)
    expected = (longer - longer.mean()) / (longer.std() + 1e-6)
    torch.testing.assert_close(credit(VirtualRewards(count=2), batch), expected[:3])


def test_forward_correction_without_false_negatives_is_negative_reinforcement() -> None:
    batch = rows([1.0, 0.0, 1.0])
    forward = credit(ForwardCorrection(0.0, 0.0), batch)
    torch.testing.assert_close(forward, credit(ConstantBaseline(1.0), batch))


def test_forward_correction_has_mean_zero_for_right_answers() -> None:
    accepted, rejected = credit(ForwardCorrection(0.1, 0.3), rows([1.0, 0.0])).tolist()
    assert math.isclose(0.7 * accepted + 0.3 * rejected, 0.0, abs_tol=1e-12)
    assert math.isclose(0.1 * accepted + 0.9 * rejected, -1.0)  # wrong answers: the clean -1


def test_momentum_is_zero_where_the_reference_could_not_be_scored() -> None:
    batch = rows([1.0, 1.0]).replace(reference_reward=torch.tensor([math.nan, 0.0]))
    assert credit(AdvantageMomentum(), batch).tolist() == [0.0, 0.28]


def test_beta_scale_names_the_range_it_was_not_told() -> None:
    with pytest.raises(DataError, match=r"beta-scale\.low"):
        credit(BetaScale(), rows([3.0, 1.0, 0.0, 1.0], [0, 0, 1, 1]))
    assert credit(BetaScale(high=3.0), rows([3.0, 1.0, 0.0, 1.0], [0, 0, 1, 1])).isfinite().all()


def test_beta_scale_is_the_centred_reward_where_all_prompts_are_equally_hard() -> None:
    batch = rows([1.0, 0.0, 0.0, 1.0], [0, 0, 1, 1])
    torch.testing.assert_close(credit(BetaScale(), batch), credit(group_mean_baseline, batch))


def test_noise_weight_ignores_groups_that_noise_explains() -> None:
    table = RolloutTable.of(rows([1.0, *[0.0] * 9, *[1.0, 0.0] * 5], [0] * 10 + [1] * 10))
    weights = NoiseAwareWeight(flip=0.1).weights(table)
    assert (weights[:10] == 0).all()
    assert (weights[10:] > 0.7).all()


@pytest.mark.parametrize("make", [lambda: NoiseAwareWeight(0.5), lambda: QuantileBaseline(1.0)])
def test_numbers_that_mean_nothing_are_refused(make: object) -> None:
    with pytest.raises(RecipeError):
        make()  # type: ignore[operator]


# --- uncertainty ----------------------------------------------------------------------------------


def test_silent_groups_learn_by_entropy_and_others_keep_their_credit() -> None:
    batch = rows([1.0, 1.0, 0.0, 0.0, 1.0, 0.0], [0, 0, 1, 1, 2, 2], width=2)
    entropy = torch.tensor([[0.2, 0.6]] * 6, dtype=F64)
    base = GroupZScore()(torch.zeros(6, 2), batch)
    found = EntropyForSilentGroups(0.5)(base, batch.replace(entropy=entropy))
    torch.testing.assert_close(found[0], torch.tensor([0.1, 0.3], dtype=F64))
    torch.testing.assert_close(found[2], torch.tensor([-0.2, 0.0], dtype=F64))
    assert (found[4:] == base[4:]).all()


def test_a_rollout_without_entropy_keeps_its_credit() -> None:
    batch = rows([1.0, 0.0]).replace(entropy=torch.tensor([[0.0], [2.0]], dtype=F64))
    found = EntropyScale(least=0.0)(torch.ones(2, 1, dtype=F64), batch)
    assert found.flatten().tolist() == [1.0, 0.5]


def test_semantic_entropy_is_zero_for_one_answer_and_largest_for_all_different() -> None:
    batch = rows([1.0, 0.0, 1.0, 0.0], [0, 0, 1, 1]).replace(
        answer_class=torch.tensor([3, 3, 1, 2])
    )
    entropy = SemanticEntropyDiscount().entropy(batch)
    assert entropy[:2].abs().max() < 1e-12
    torch.testing.assert_close(entropy[2:], torch.full((2,), math.log(2), dtype=F64))


def test_halves_with_even_weight_are_the_centred_reward() -> None:
    draw = torch.Generator().manual_seed(3)
    batch = rows(torch.rand(12, generator=draw).tolist(), [0] * 6 + [1] * 6)
    batch = batch.replace(entropy=torch.rand(12, 1, generator=draw, dtype=F64))
    found = credit(EntropyHalves(mu=0.5), batch)
    torch.testing.assert_close(found, credit(group_mean_baseline, batch))


def test_a_single_prompt_has_no_global_advantage() -> None:
    batch = rows([1.0, 0.0, 1.0]).replace(answer_class=torch.tensor([0, 1, 0]))
    assert (LocalAndGlobal().provide(batch)["global_advantages"] == 0).all()


# --- memories -------------------------------------------------------------------------------------


def visit(rewards: list[float], name: str = "p") -> Batch:
    batch = rows(rewards)
    return batch.replace(prompts=tuple(Prompt(name, "") for _ in rewards))


def test_equal_rewards_learn_once_their_prompt_has_a_history() -> None:
    part = SmoothStandardisation()
    assert (credit(part, visit([0.1, 0.1, 0.1])) == 0).all()
    assert (credit(part, visit([0.1, 0.1, 0.1])) == 0).all()  # no rounding noise is standardised
    assert (credit(part, visit([1.0, 0.0, 1.0])) != 0).all()
    assert (credit(part, visit([0.0, 0.0, 0.0])) < 0).all()


def test_moments_of_equal_visits_are_those_of_all_rewards() -> None:
    part = SmoothStandardisation()
    first, second = [1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 0.0]
    credit(part, visit(first))
    credit(part, visit(second))
    visits, mean, std = part.history["p"]
    both = torch.tensor([first, second], dtype=F64)
    within = both.var(1).mean()
    between = both.mean(1).diff().square().item() / 4
    assert (visits, mean) == (2, both.mean())
    assert math.isclose(std**2, within + between, rel_tol=1e-12)


@pytest.mark.parametrize("make", [SmoothStandardisation, SingleStreamBaseline, MixedValueAtRisk])
def test_a_restored_memory_gives_the_same_credit(make: type) -> None:
    def at(step: int) -> Batch:
        draw = torch.Generator().manual_seed(step)
        batch = rows((torch.rand(6, generator=draw) < 0.5).double().tolist(), [0, 0, 1, 1, 2, 2])
        prompts = tuple(Prompt(f"p{i // 2}", "") for i in range(6))
        drift = torch.rand(6, generator=draw, dtype=F64)
        return batch.replace(prompts=prompts, previous_drift=drift)

    part = make()
    for step in range(3):
        credit(part, at(step))
    restored = make()
    restored.load_state_dict(part.state_dict())
    torch.testing.assert_close(credit(restored, at(9)), credit(part, at(9)))
    assert not torch.allclose(credit(make(), at(9)), credit(restored, at(9)))


def test_the_tracked_success_rate_is_read_before_it_learns() -> None:
    part = SingleStreamBaseline()
    batch = visit([1.0]).replace(previous_drift=torch.zeros(1))
    credit(part, batch)
    alpha, beta = part.beliefs.beliefs["p"]
    assert (alpha, beta) == pytest.approx((0.96 * 0.5 + 1, 0.96 * 0.5))


def test_a_policy_that_moved_forgets_more() -> None:
    kept = SingleStreamBaseline().kept(torch.tensor([0.0, 0.006, 1.0], dtype=F64))
    torch.testing.assert_close(kept, torch.tensor([0.96, 2 ** (-0.1), 0.875], dtype=F64))


# --- sets of rollouts -----------------------------------------------------------------------------


def subsets_sum(rewards: Tensor, k: int, weight: Tensor, member: int) -> float:
    """sum over k-subsets with a member of max reward times the product of weights, by hand."""
    total = 0.0
    for chosen in itertools.combinations(range(len(rewards)), k):
        if member in chosen:
            index = torch.tensor(chosen)
            total += float(rewards[index].max() * weight[index].prod())
    return total / math.comb(len(rewards), k)


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_best_of_k_is_the_mean_over_all_subsets_in_every_group(k: int) -> None:
    draw = torch.Generator().manual_seed(k)
    index = torch.tensor([0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 1])
    rewards = torch.randint(0, 4, (11,), generator=draw).double()
    ratio = 0.5 + torch.rand(11, generator=draw, dtype=F64)
    plain, off = best_of_k(rewards, index, k), exact(rewards, ratio, index, k)
    for g in (0, 1):
        where = (index == g).nonzero().flatten()
        for i, row in enumerate(where):
            one = torch.ones(len(where), dtype=F64)
            assert plain[row] == pytest.approx(subsets_sum(rewards[where], k, one, i))
            assert off[row] == pytest.approx(subsets_sum(rewards[where], k, ratio[where], i))


def test_first_order_is_the_derivative_of_the_exact_form() -> None:
    draw = torch.Generator().manual_seed(0)
    rewards, index = torch.rand(7, generator=draw, dtype=F64), torch.zeros(7, dtype=torch.long)
    delta = torch.randn(7, generator=draw, dtype=F64)
    small = 1e-5
    ends = [exact(rewards, 1 + sign * small * delta, index, 3) for sign in (1, -1)]
    slope = (ends[0] - ends[1]) / (2 * small)
    linear = first_order(rewards, 1 + delta, index, 3) - best_of_k(rewards, index, 3)
    torch.testing.assert_close(linear, slope, rtol=1e-6, atol=1e-8)


def test_leave_one_out_and_marginal_by_hand() -> None:
    rewards, index = torch.tensor([0.2, 0.9, 0.4], dtype=F64), torch.zeros(3, dtype=torch.long)
    # q = (0.9 + 0.4, 0.9 + 0.9, 0.4 + 0.9) / 3; without i the only pair's maximum is 0.9, 0.4, 0.9
    expected = torch.tensor([1.3 / 3 - 0.6, 0.6 - 0.8 / 3, 1.3 / 3 - 0.6], dtype=F64)
    torch.testing.assert_close(leave_one_out(rewards, index, 2), expected)
    gain = torch.tensor([0.0, (0.7 + 0.5) / 3, 0.2 / 3], dtype=F64)
    torch.testing.assert_close(marginal(rewards, index, 2), gain)


def test_a_group_smaller_than_k_uses_its_own_size() -> None:
    rewards, index = torch.tensor([0.2, 0.9], dtype=F64), torch.zeros(2, dtype=torch.long)
    torch.testing.assert_close(max_at_k(rewards, index, 8), torch.full((2,), 0.9, dtype=F64))


def test_off_policy_credit_is_the_on_policy_one_before_the_first_step() -> None:
    draw = torch.Generator().manual_seed(5)
    batch = rows(torch.rand(8, generator=draw).tolist(), [0] * 5 + [1] * 3, width=3)
    logp = -torch.rand(8, 3, generator=draw, dtype=F64)
    batch = batch.replace(logp_old=logp)
    expected = BestOfKZScore(k=2)(torch.zeros(8, 3), batch)
    torch.testing.assert_close(OffPolicyBestOfK(k=2).credit(logp, batch), expected)

    def gradient(surrogate: object, given: Batch) -> Tensor:
        leaf = logp.clone().requires_grad_()
        objective = Objective(surrogate=surrogate, aggregation=token_mean)  # type: ignore[arg-type]
        return torch.autograd.grad(objective(Evaluation(leaf), given).loss, leaf)[0]

    usual = gradient(ClippedSurrogate(), batch.replace(advantages=expected))
    torch.testing.assert_close(gradient(OffPolicyBestOfK(k=2), batch), usual)


def test_a_set_shares_its_credit_and_leftovers_get_none() -> None:
    batch = rows([1.0, 0.0, 0.0, 0.0, 1.0]).replace(answer_class=torch.tensor([0, 1, 2, 2, 0]))
    found = credit(PolychromicSets(size=2), batch)
    # first set: mean 1/2, both distinct; second: mean 0
    torch.testing.assert_close(found, torch.tensor([0.25, 0.25, -0.25, -0.25, 0.0], dtype=F64))


def test_bundles_follow_the_order_of_sampling_not_of_group_ids() -> None:
    batch = rows([1.0] * 6, [9, 9, 4, 4, 1, 1])
    assert bundles_of(batch, RolloutTable.of(batch), 2).tolist() == [0, 0, 0, 0, 1, 1]


def test_papers_of_uneven_groups_end_with_the_shortest() -> None:
    batch = rows([1.0, 0.5, 0.25, 2.0, 3.0], [0, 0, 0, 1, 1])
    table = RolloutTable.of(batch)
    papers = Papers.of(table, bundles_of(batch, table, 5))
    assert papers.score.tolist() == [3.0, 3.5]
    assert papers.used.tolist() == [True, True, False, True, True]
    assert papers.of_rollout[papers.used].tolist() == [0, 1, 0, 1]
    assert credit(MixedValueAtRisk(), batch)[2] == 0


def test_risk_credit_is_never_positive_and_best_papers_get_zero() -> None:
    draw = torch.Generator().manual_seed(1)
    batch = rows(torch.rand(20, generator=draw).tolist(), [i // 4 for i in range(20)])
    part = MixedValueAtRisk()
    found = credit(part, batch)
    assert (found <= 1e-12).all()
    assert (found.abs() < 1e-12).any()
    assert len(part.quantiles) == len(LEVELS)


def test_thoughts_and_answers_each_have_their_mean() -> None:
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 0, 0]]).bool()
    thought_tokens = torch.tensor([[1, 1, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0]])
    batch = rows([1.0, 0.0, 1.0], width=4).replace(
        mask=mask, thought=torch.tensor([0, 0, 1]), thought_tokens=thought_tokens
    )
    found = thought_mean_answer_mean(batch)
    half, third = 1 / 2, 1 / 3
    expected = torch.tensor(
        [
            [half / 2 * half, half / 2 * half, third, 0],
            [half / 2 * half, half / 2 * half, third * half, third * half],
            [half, third, 0, 0],
        ],
        dtype=F64,
    )
    torch.testing.assert_close(found, expected)
    assert found[thought_tokens.bool() & mask].sum() == pytest.approx(1)


def test_group_std_of_one_is_zero_so_nothing_is_blown_up() -> None:
    assert group_std(torch.tensor([5.0]), torch.tensor([0])).item() == 0
