"""Segments, planning tokens, effective ranks and conflicting tokens."""

from __future__ import annotations

import math

import pytest
import torch

from polyopt.advantages.effective_rank import RankVelocity, effective_rank, rank_measures
from polyopt.advantages.entropy_weights import ConfidenceScale, EntropyWeightedTokens
from polyopt.advantages.planning import PlanningTokens, in_grams
from polyopt.advantages.segment_trees import SegmentTree, sibling_baseline
from polyopt.advantages.turns import runs
from polyopt.batch import Batch
from polyopt.objectives.mean_ratio import arithmetic_sequence_ratio
from polyopt.selection.conflicts import ConflictRuns
from polyopt.selection.information import InformationWeights, divergence_from_group
from polyopt.selection.uncertain_tokens import RandomTokens


def test_a_segments_value_is_the_mean_of_its_children_however_many_leaves_they_have() -> None:
    segment = torch.tensor([[0, 1], [0, 2], [0, 2], [3, 4]])
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    batch = Batch.of(mask=torch.ones(4, 2), rewards=rewards, segment=segment)
    tree = SegmentTree.of(batch)
    values = tree.spread(tree.values(rewards))
    assert values[:, 0].tolist() == [0.5, 0.5, 0.5, 1.0]
    credit = sibling_baseline(torch.zeros(4, 2), batch)
    assert credit[:, 0].tolist() == [-0.25, -0.25, -0.25, 0.25]
    assert credit[:, 1].tolist() == [0.5, -0.5, -0.5, 0.0]


def test_a_segment_that_follows_itself_is_an_error_that_says_so() -> None:
    batch = Batch.of(
        mask=torch.ones(2, 3), rewards=torch.zeros(2), segment=torch.tensor([[0, 1, 0], [2, 2, 2]])
    )
    with pytest.raises(ValueError, match="follows itself"):
        SegmentTree.of(batch).values(batch.rewards)


def test_grams_of_all_lengths_are_found_and_overlaps_count_once() -> None:
    tokens = torch.tensor([[1, 2, 3, 1, 2, 9], [7, 1, 2, 3, 4, 5]])
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[1, 5] = False
    found = in_grams(tokens, mask, [(1, 2, 3), (2, 3, 1), (9,), (4, 5), (1, 2, 3, 1, 2, 9, 9)])
    assert found.long().tolist() == [[1, 1, 1, 1, 0, 1], [0, 1, 1, 1, 0, 0]]
    batch = Batch.of(mask=mask, tokens=tokens)
    credit = PlanningTokens(0.5, ((9,),))(torch.full((2, 6), -1.0), batch)
    assert credit[0].tolist() == [-1, -1, -1, -1, -1, -0.5]


def test_effective_rank_counts_directions_of_equal_strength() -> None:
    hidden = torch.cat([torch.eye(4), -torch.eye(4)]).double()
    whole = torch.ones(1, 8, dtype=torch.bool)
    torch.testing.assert_close(float(effective_rank(hidden, whole)), 4.0, atol=1e-6, rtol=0)
    one = torch.zeros(1, 8, dtype=torch.bool)
    one[0, 2] = True
    assert float(effective_rank(hidden, one)) == 0
    assert all(math.isfinite(v) for v in rank_measures(hidden[:0], 2).values())


def test_rank_bonus_waits_for_a_running_mean_and_never_lowers_an_advantage() -> None:
    columns = {n: torch.tensor([1.0, 3.0]) for n in ("effective_rank", "erv", "era")}
    batch, part = Batch.of(mask=torch.ones(2, 1), **columns), RankVelocity()
    before = torch.tensor([[1.0], [-1.0]])
    assert (part(before, batch) == before).all()
    assert part.means["era"] == 2.0
    restored = RankVelocity()
    restored.load_state_dict(part.state_dict())
    after = restored(before, batch)
    torch.testing.assert_close(after, torch.tensor([[1.0], [-0.5]]), atol=0.06, rtol=0)
    assert (after >= before).all()


def test_conflict_runs_end_at_the_first_token_that_sets_outcomes_apart() -> None:
    tokens = torch.tensor([[1, 2, 3, 8, 9], [1, 2, 4, 3, 9], [5, 2, 6, 9, 0]])
    mask = torch.ones_like(tokens)
    mask[2, 4] = 0
    batch = Batch.of(mask=mask, tokens=tokens, rewards=torch.tensor([1.0, 0.0, 1.0]))
    found = ConflictRuns.of(batch)
    assert found.sign.tolist() == [1, -1, 1]
    assert found.forward.long().tolist() == [[1, 1, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0]]
    assert found.backward.long().tolist() == [[0, 0, 0, 0, 1], [0, 0, 0, 0, 1], [0, 0, 0, 1, 0]]


def test_confidence_scale_turns_the_sign_of_very_unsure_rollouts_unless_held() -> None:
    entropy = torch.tensor([[0.0], [0.0], [0.0], [4.0]])
    batch = Batch.of(mask=torch.ones(4, 1), entropy=entropy)
    assert ConfidenceScale().scale(batch).tolist() == [2, 2, 2, -2]
    assert ConfidenceScale(least=0.0).scale(batch).tolist() == [2, 2, 2, 0]


def test_weights_that_add_up_to_one_keep_the_sum_of_rewards_at_each_place() -> None:
    draw = torch.Generator().manual_seed(0)
    batch = Batch.of(
        mask=torch.ones(5, 3),
        rewards=torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0]),
        entropy=torch.rand(5, 3, generator=draw),
    )
    shaped = EntropyWeightedTokens(base=0.9, weight=0.1).token_rewards(batch)
    torch.testing.assert_close(shaped[:2].sum(0), torch.full((3,), 2.0))
    torch.testing.assert_close(shaped[2:].sum(0), torch.full((3,), -3.0))


def test_the_arithmetic_ratio_is_the_mean_of_token_ratios() -> None:
    logp_old = torch.tensor([[-1.0, -2.0], [-1.0, -1.0]])
    batch = Batch.of(mask=torch.tensor([[1, 1], [0, 0]]), logp_old=logp_old)
    ratio = arithmetic_sequence_ratio(logp_old + torch.tensor([0.0, math.log(3.0)]), batch).exp()
    torch.testing.assert_close(ratio, torch.tensor([[2.0, 2.0], [1.0, 1.0]]))


def test_information_weights_ignore_places_that_no_completion_reaches() -> None:
    logp = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    mask = torch.arange(5) < torch.tensor([2, 4, 3])[:, None]
    index = torch.zeros(3, dtype=torch.long)
    k = divergence_from_group(logp, mask, index)
    wide = InformationWeights()(Batch.of(mask=mask, vocabulary_divergence=k))["weights"]
    part = Batch.of(mask=mask[:, :4], vocabulary_divergence=k[:, :4])
    torch.testing.assert_close(wide[:, :4], InformationWeights()(part)["weights"])
    assert float(wide.max()) == pytest.approx(1.7)


def test_early_tokens_always_train_and_later_ones_by_their_draw() -> None:
    uniform = torch.tensor([[0.9, 0.9, 0.3, 0.5, 0.1]])
    batch = Batch.of(mask=torch.ones(1, 5), draws=uniform)
    assert RandomTokens(2, 0.4)(batch).loss_mask.tolist() == [[True, True, True, False, True]]


def test_runs_count_changes_from_the_start() -> None:
    assert runs(torch.tensor([[1, 1, 0, 0, 1], [0, 1, 1, 1, 1]])).tolist() == [
        [0, 0, 1, 1, 2],
        [0, 1, 1, 1, 1],
    ]
