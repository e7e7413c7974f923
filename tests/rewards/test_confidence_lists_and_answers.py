"""Rewards by confidence, for lists, and the classes of answers."""

from __future__ import annotations

import math

import pytest
import torch

from polyopt.batch import Batch, Prompt
from polyopt.errors import RecipeError
from polyopt.rewards.answer_classes import answer_class
from polyopt.rewards.confidence import ConfidenceCalibration, UnlikelinessReward
from polyopt.rewards.noise import BackwardCorrection, FalseNegativeRate
from polyopt.rewards.policy_drift import previous_drift
from polyopt.rewards.ranked_lists import LineHits, LineItems, discounted_rank_rewards

F64 = torch.float64


def with_logp(rewards: list[float], logp: list[list[float]]) -> Batch:
    return Batch.of(
        rewards=torch.tensor(rewards, dtype=F64), logp_old=torch.tensor(logp, dtype=F64)
    )


def test_right_rollouts_keep_their_reward_and_sure_mistakes_pay_most() -> None:
    batch = with_logp([1.0, 0.0, 0.0], [[-1.0], [-0.1], [-3.0]])
    found = ConfidenceCalibration()(batch).rewards
    assert found[0] == 1
    assert -1 / 3 <= found[1] < found[2] < 0


@pytest.mark.parametrize("part", [ConfidenceCalibration(), UnlikelinessReward()])
def test_a_rollout_nobody_could_score_stays_unscored_and_shifts_no_other(part: object) -> None:
    batch = with_logp([1.0, math.nan, 0.0, 1.0], [[-1.0], [-0.1], [-3.0], [-2.0]])
    found = part(batch).rewards  # type: ignore[operator]
    known = torch.tensor([0, 2, 3])
    assert found[1].isnan()
    torch.testing.assert_close(found[known], part(batch.select(known)).rewards)  # type: ignore[operator]


def test_among_right_rollouts_the_likeliest_earns_least() -> None:
    batch = with_logp([1.0, 1.0, 0.0, 1.0], [[-1.0], [-0.1], [-0.2], [-2.0]])
    found = UnlikelinessReward(0.4)(batch).rewards
    assert found.tolist() == pytest.approx([0.9, 0.7, 0.0, 1.0])


def test_backward_correction_is_unbiased() -> None:
    accepted, rejected = BackwardCorrection(0.1, 0.3)(with_logp([1.0, 0.0], [[0.0]] * 2)).rewards
    assert 0.7 * accepted + 0.3 * rejected == pytest.approx(1)
    assert 0.1 * accepted + 0.9 * rejected == pytest.approx(0)


def test_a_verifier_no_better_than_chance_is_refused() -> None:
    with pytest.raises(RecipeError, match="below 1"):
        BackwardCorrection(0.5, 0.5)


def test_the_false_negative_rate_survives_a_restart() -> None:
    rate = FalseNegativeRate(0.2)
    rate.observe(accepted=30, flips=5, share=0.5)
    again = FalseNegativeRate()
    again.load_state_dict(rate.state_dict())
    assert again.observe(20, 1, 0.5) == rate.observe(20, 1, 0.5)
    assert rate.estimate(30, 5, 0.5) == pytest.approx(10 / 40, rel=1e-5)


def test_equal_answers_share_a_class_and_silence_is_alone() -> None:
    texts = ["so <answer>Paris.</answer>", r"\boxed{paris}", "<think>hm", "<think>ha", "Rome"]
    batch = Batch.of(rewards=torch.zeros(5), texts=texts)
    a, b, c, d, e = answer_class(batch)["answer_class"].tolist()
    assert a == b
    assert len({a, c, d, e}) == 4


def test_lines_that_are_answers_are_hits_and_blank_lines_are_none() -> None:
    prompt = Prompt("p", "films", answer=["Alien", "Brazil"])
    batch = Batch.of(
        rewards=torch.zeros(1), prompts=[prompt], texts=["alien\n\nHeat\nBRAZIL\nAlien"]
    )
    assert LineHits(3)(batch)["hits"].tolist() == [[1, 0, 1]]


def test_a_line_break_belongs_to_the_item_it_ends() -> None:
    mask = torch.tensor([[1, 1, 1, 1, 1, 0]])
    batch = Batch.of(mask=mask, tokens=torch.tensor([[5, 9, 6, 7, 9, 9]]))
    assert LineItems((9,))(batch)["items"].tolist() == [[0, 0, 1, 1, 1, -1]]


def test_no_item_is_paid_for_earlier_ones() -> None:
    hits = torch.tensor([[1.0, 0.0, 1.0]], dtype=F64)
    found = discounted_rank_rewards(Batch.of(hits=hits))["rank_rewards"]
    assert found.tolist() == [[1.5, 0.5, 0.5]]


def test_drift_is_that_of_the_revisited_row_of_the_group() -> None:
    batch = Batch.of(
        mask=torch.ones(3, 2),
        group=torch.tensor([4, 4, 5]),
        revisit=torch.tensor([False, True, False]),
        logp_sampler=torch.tensor([[-9.0, -9.0], [-1.0, -2.0], [-9.0, -9.0]]),
        logp_old=torch.tensor([[-1.0, -1.0], [-1.5, -1.0], [-1.0, -1.0]]),
    )
    assert previous_drift(batch)["previous_drift"].tolist() == [0.75, 0.75, 0.0]
