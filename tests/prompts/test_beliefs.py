"""Prompts by what is believed, or known, about them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from polyopt.batch import Batch, Prompt
from polyopt.prompts.beliefs import UncertainFirst, belief_from_scores, visit_weight
from polyopt.prompts.reference_values import NotMastered


def test_offline_scores_are_worth_a_fixed_number_of_visits() -> None:
    alpha, beta = belief_from_scores([1, 0, 0, 1], least=0.875)
    assert alpha + beta == pytest.approx(8)
    assert alpha / (alpha + beta) == pytest.approx(0.5)
    assert belief_from_scores([]) == (0.5, 0.5)


def test_prompts_come_in_proportion_to_their_weight() -> None:
    part = UncertainFirst()
    part.beliefs.beliefs = {"even": (4.0, 4.0), "sure": (7.9, 0.1)}
    draws = np.random.default_rng(0)
    shares = {
        name: np.mean([part.keep(Prompt(name, ""), draws) for _ in range(20000)])
        for name in ("even", "sure")
    }
    assert shares["even"] == 1
    expected = visit_weight(7.9 / 8) / visit_weight(0.5)
    assert shares["sure"] == pytest.approx(expected, abs=0.02)


def test_what_was_seen_changes_what_is_visited_and_unscored_rollouts_teach_nothing() -> None:
    part = UncertainFirst()
    prompts = [Prompt("p", "")] * 3
    rewards = torch.tensor([1.0, float("nan"), 1.0])
    part.observe(Batch.of(rewards=rewards, prompts=prompts))
    alpha, beta = part.beliefs.beliefs["p"]
    assert alpha == pytest.approx(0.96**2 * 0.5 + 0.96 + 1)
    restored = UncertainFirst()
    restored.load_state_dict(part.state_dict())
    assert restored.beliefs == part.beliefs
    assert beta < 0.5


def test_prompts_that_the_reference_always_solves_are_left_out() -> None:
    draws = np.random.default_rng(0)
    facts = [{"reference_rewards": rewards} for rewards in ([1, 1], [1, 0], [0, 0])]
    kept = [NotMastered().keep(Prompt("p", "", None, fact), draws) for fact in facts]
    assert kept == [False, True, True]
