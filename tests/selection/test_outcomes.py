"""Screens by outcome, and rows without a reward."""

from __future__ import annotations

import math

import torch

from polyopt.batch import Batch
from polyopt.selection.outcomes import Unsolved, only_right, only_wrong
from polyopt.selection.unscored import drop_unscored


def test_right_and_wrong_are_judged_by_accuracy_not_by_shaped_rewards() -> None:
    batch = Batch.of(
        rewards=torch.tensor([0.7, 1.0, 0.0]), accuracy=torch.tensor([1.0, 0.0, math.nan])
    )
    assert only_right(batch).tolist() == [True, False, False]
    assert only_wrong(batch).tolist() == [False, True, False]


def test_prompts_that_all_rollouts_solve_are_screened_out() -> None:
    batch = Batch.of(
        rewards=torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, math.nan, 1.0]),
        group=torch.tensor([3, 3, 8, 8, 9, 5, 5]),
    )
    assert Unsolved()(batch).tolist() == [False, False, True, True, True, False, False]


def test_unscored_rollouts_leave_the_loss_mask() -> None:
    batch = Batch.of(mask=torch.ones(2, 3), rewards=torch.tensor([math.nan, 0.0]))
    assert drop_unscored(batch).loss_mask.any(1).tolist() == [False, True]
