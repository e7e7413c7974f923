"""Soft means, credit of supervised losses, of off-policy REINFORCE and beside demonstrations."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from polyopt.advantages.off_policy import ExponentialWeight, ShiftedMeanBaseline, SoftMeanBaseline
from polyopt.advantages.optimal_value import OptimalValueBaseline
from polyopt.advantages.own_rollouts import OwnMeanBaseline, OwnZScore
from polyopt.advantages.soft_means import group_log_softmax, group_soft_mean, soft_mean
from polyopt.advantages.supervised import MixedGroupReward, SuccessRateWeight
from polyopt.advantages.token_groups import TokenGroupAverage
from polyopt.batch import Batch, Prompt
from polyopt.errors import DataError


def credit(part: Any, batch: Batch) -> Tensor:
    return part(torch.zeros(batch.mask.shape, dtype=batch.rewards.dtype), batch)  # type: ignore[no-any-return]


def group_of(*rewards: float, **columns: Tensor) -> Batch:
    return Batch.of(rewards=torch.tensor(rewards, dtype=torch.float64), **columns)


def test_soft_means_lie_between_mean_and_maximum() -> None:
    values = torch.tensor([[0.0, 1.0, 4.0], [2.0, 2.0, 2.0]])
    for temperature in (0.1, 1.0, 10.0):
        found = soft_mean(values, temperature)
        assert values.mean(1)[0] < found[0] < values.amax(1)[0]
        torch.testing.assert_close(found[1], torch.tensor(2.0))
    torch.testing.assert_close(soft_mean(values, math.inf), values.mean(1))
    torch.testing.assert_close(soft_mean(values, 1e-3), values.amax(1), atol=2e-3, rtol=0)


def test_soft_means_skip_what_is_unknown() -> None:
    values = torch.tensor([[0.0, 1.0, float("nan")], [float("nan")] * 3])
    torch.testing.assert_close(soft_mean(values, 1.0)[0], soft_mean(values[:1, :2], 1.0)[0])
    assert soft_mean(values, 1.0)[1] == 0
    assert soft_mean(values[:, :0], 1.0).tolist() == [0.0, 0.0]


def test_soft_means_hold_at_rewards_that_would_overflow() -> None:
    assert soft_mean(torch.tensor([[1000.0, 0.0]]), 0.5).isfinite().all()
    values, index = torch.tensor([1e4, 0.0, -1e4]), torch.zeros(3, dtype=torch.long)
    assert group_log_softmax(values, index).isfinite().all()


def test_a_soft_mean_asks_for_a_temperature() -> None:
    with pytest.raises(ValueError, match="above 0, not 0"):
        group_soft_mean(torch.zeros(2), torch.zeros(2, dtype=torch.long), 0.0)


def test_the_soft_mean_baseline_of_infinite_temperature_is_the_mean() -> None:
    batch = group_of(1.0, 0.0, 0.0)
    torch.testing.assert_close(
        credit(SoftMeanBaseline(math.inf), batch), credit(ShiftedMeanBaseline(0.0), batch)
    )
    assert (credit(SoftMeanBaseline(0.5), batch) < credit(SoftMeanBaseline(5.0), batch)).all()


def test_exponential_weights_favour_good_rollouts() -> None:
    advantages = torch.tensor([[1.0, -1.0]])
    found = ExponentialWeight()(advantages, group_of(0.0))
    torch.testing.assert_close(found, torch.tensor([[math.e, -1 / math.e]]))


def prompts_with(*facts: dict[str, Any]) -> list[Prompt]:
    return [Prompt(f"p{i}", "", metadata=fact) for i, fact in enumerate(facts)]


def test_the_optimal_value_is_read_from_the_prompts_in_lists_of_any_length() -> None:
    known = prompts_with({"reference_rewards": [0, 0, 0, 0]}, {"reference_rewards": [1, 1]})
    batch = dataclasses.replace(group_of(1.0, 0.5), prompts=tuple(known))
    torch.testing.assert_close(
        credit(OptimalValueBaseline(), batch)[:, 0], torch.tensor([1.0, -0.5], dtype=torch.float64)
    )


def test_a_prompt_without_reference_rewards_is_named() -> None:
    known = prompts_with({"reference_rewards": [0]}, {})
    batch = dataclasses.replace(group_of(1.0, 0.5), prompts=tuple(known))
    with pytest.raises(DataError, match="'p1'"):
        credit(OptimalValueBaseline(), batch)


def test_own_rollouts_are_the_measure_of_demonstrations() -> None:
    batch = group_of(0.0, 1.0, 1.0, demonstration=torch.tensor([0.0, 0.0, 1.0]))
    assert credit(OwnMeanBaseline(), batch)[:, 0].tolist() == [-0.5, 0.5, 0.5]


def test_equal_own_rewards_give_exactly_no_credit_to_own_rollouts() -> None:
    batch = group_of(0.1, 0.1, 0.1, 1.0, demonstration=torch.tensor([0.0, 0.0, 0.0, 1.0]))
    for part in (OwnMeanBaseline(), OwnZScore()):
        found = credit(part, batch)[:, 0]
        assert (found[:3] == 0).all()
        assert 0 < found[3] <= 10


def test_a_demonstration_alone_has_no_measure() -> None:
    batch = group_of(1.0, demonstration=torch.ones(1))
    assert credit(OwnMeanBaseline(lone=1.0), batch).tolist() == [[0.0]]


def test_a_silent_group_is_rejected_whatever_its_reward() -> None:
    batch = group_of(1.0, 1.0, -1.0, 1.0, group=torch.tensor([0, 0, 1, 1]))
    assert credit(MixedGroupReward(), batch)[:, 0].tolist() == [0.0, 0.0, -1.0, 1.0]


def test_success_weights_keep_rates_away_from_certainty() -> None:
    batch = group_of(1.0, 1.0, 0.0, 0.0, group=torch.tensor([0, 0, 1, 1]))
    part = SuccessRateWeight()
    assert part.provide(batch)["success_rate"].tolist() == [0.98, 0.98, 0.02, 0.02]
    assert (credit(part, batch)[:2] > 0).all()
    assert (credit(part, batch)[2:] < 0).all()


def test_a_token_average_counts_long_rollouts_more_often() -> None:
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    found = credit(TokenGroupAverage(eps=0.0), group_of(1.0, 0.0, mask=mask))
    std = (0.75 * 0.25) ** 0.5
    torch.testing.assert_close(found[0], torch.full((3,), 0.25 / std, dtype=torch.float64))
    torch.testing.assert_close(found[1, 0], torch.tensor(-0.75 / std, dtype=torch.float64))


def test_a_token_average_that_explodes_falls_back_to_rollouts() -> None:
    mask = torch.ones(2, 40)
    mask[1, 1:] = 0
    found = credit(TokenGroupAverage(), group_of(0.0, 1.0, mask=mask))
    assert float(found[1, 0]) == pytest.approx(0.5**0.5, abs=1e-5)
