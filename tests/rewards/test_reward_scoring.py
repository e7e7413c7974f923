"""Scores of a batch: shared case 18 and functions that return what they shouldn't."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from polyopt.batch import Prompt
from polyopt.errors import DataError
from polyopt.rewards.protocol import RewardTerm
from polyopt.rewards.scoring import score
from polyopt.rewards.specs import parse_reward

PROMPTS = [Prompt(f"train/{i}", f"What is {i} + {i}?", str(2 * i)) for i in range(4)]
TEXTS = ["zero", "two", "four", "six"]


def fixed(rewards: Any, name: str = "f", weight: float = 1.0) -> RewardTerm:
    def function(prompts: Sequence[Prompt], texts: Sequence[str]) -> Any:
        return rewards

    return RewardTerm(name, function, weight)


def failure(rewards: Any, **more: Any) -> str:
    with pytest.raises(DataError) as caught:
        score([fixed(rewards)], PROMPTS, TEXTS, **more)
    return str(caught.value)


def test_a_row_that_no_function_scored_is_unscored_and_not_zero() -> None:
    terms = [fixed([1, 0, None, None], "f1"), fixed([None, 2, None, 4], "f2", weight=0.5)]
    scores = score(terms, PROMPTS, TEXTS)
    torch.testing.assert_close(
        scores.total, torch.tensor([1, 1, math.nan, 2]).double(), equal_nan=True
    )
    assert scores.unscored == 1


def test_the_total_is_the_weighted_sum_of_the_logged_terms() -> None:
    terms = [fixed([1, 0, 1, 0], "f1", 2.0), fixed([3, 3, 0, 0], "f2", -0.5)]
    scores = score(terms, PROMPTS, TEXTS)
    assert scores.total.tolist() == [0.5, -1.5, 2.0, 0.0]
    assert scores.terms["f2"].tolist() == [3, 3, 0, 0]
    logged = sum(term.weight * scores.terms[term.name].mean() for term in terms)
    assert float(logged) == float(scores.total.mean())


@pytest.mark.parametrize(
    "rewards",
    [
        [True, False, 1, 0.5],
        (np.bool_(True), np.int64(0), np.float32(1), np.array(0.5)),
        [torch.tensor(1), torch.tensor(False), torch.tensor(1.0, dtype=torch.bfloat16), 0.5],
        np.array([1, 0, 1, 0.5]),
        torch.tensor([1, 0, 1, 0.5], requires_grad=True),
    ],
    ids=["python", "numpy scalars", "0-d tensors", "array", "tensor"],
)
def test_any_kind_of_number_equals_its_float_value(rewards: Any) -> None:
    scores = score([fixed(rewards)], PROMPTS, TEXTS)
    assert scores.total.tolist() == [1.0, 0.0, 1.0, 0.5]
    assert scores.total.dtype == torch.float64


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a second device")
def test_tensors_on_another_device_equal_their_float_values() -> None:
    rewards = [torch.tensor(0.25, device="cuda"), 0, 0, torch.tensor(1, device="cuda")]
    assert score([fixed(rewards)], PROMPTS, TEXTS).total.tolist() == [0.25, 0, 0, 1]


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, "1.0", [1.0], np.nan, torch.ones(1), 10**400, 1j]
)
def test_anything_but_a_finite_number_or_none_names_function_prompt_value_and_way_out(
    value: Any,
) -> None:
    message = failure([0, value, 1, 1])
    assert "reward 'f'" in message
    assert "'train/1'" in message
    assert "What is 1 + 1?" in message
    assert "'two'" in message
    assert repr(value)[:20] in message
    assert "None where the function can't score" in message


def test_a_wrong_number_of_rewards_names_both_numbers() -> None:
    message = failure([1, 2, 3])
    assert "reward 'f' returned 3 rewards for 4 completions" in message
    assert "[1, 2, 3]" in message
    assert "'train/0'" in message
    assert "must return a list" in message


@pytest.mark.parametrize(
    "returned", [None, 1.0, "1111", {0: 1, 1: 1, 2: 1, 3: 1}, torch.tensor(1.0), np.float64(1)]
)
def test_a_result_that_is_no_list_is_named(returned: Any) -> None:
    message = failure(returned)
    assert "reward 'f' returned" in message
    assert repr(returned) in message
    assert "must return a list of 4 rewards" in message


def test_an_exception_names_function_prompt_completion_line_and_way_out(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def bad(completion, answer):\n    return 1 / (len(completion) - 4)\n")
    with pytest.raises(DataError) as caught:
        score([parse_reward(f"{file}:bad")], PROMPTS, TEXTS)
    message = str(caught.value)
    assert "reward 'bad' raised on prompt 'train/0'" in message
    assert "'zero'" in message
    assert "mine.py line 2: ZeroDivisionError" in message
    assert "may return None" in message


def test_an_exception_of_a_batch_function_names_the_batch(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def bad(completions):\n    return [c.missing for c in completions]\n")
    with pytest.raises(DataError, match=r"batch of 4 completions.*'train/0'.*mine\.py line 2"):
        score([parse_reward(f"{file}:bad")], PROMPTS, TEXTS)


def test_a_batch_that_nobody_could_score_warns(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        scores = score([fixed([None] * 4)], PROMPTS, TEXTS)
    assert scores.unscored == 4
    assert bool(scores.total.isnan().all())
    assert "could score any of 4 completions (f)" in caplog.text


def test_a_first_scoring_that_is_all_none_is_taken_for_a_mistake() -> None:
    message = failure([None] * 4, first=True)
    assert "reward 'f' returned None for every one" in message
    assert "'train/0'" in message
    assert "return its result" in message


def test_a_forgotten_return_is_found_beside_a_term_that_is_only_logged() -> None:
    terms = [fixed([None] * 4, "forgot"), fixed([1, 1, 1, 1], "accuracy", weight=0)]
    with pytest.raises(DataError, match="'forgot'"):
        score(terms, PROMPTS, TEXTS, first=True)


def test_a_term_for_other_prompts_only_warns_at_the_first_scoring(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        scores = score([fixed([None] * 4, "code"), fixed([1, 0, 1, 0], "math")], PROMPTS, TEXTS,
                       first=True)  # fmt: skip
    assert scores.total.tolist() == [1, 0, 1, 0]
    assert "reward 'code' returned None for every one" in caplog.text


def test_a_row_that_only_a_term_of_weight_zero_scored_is_unscored() -> None:
    terms = [fixed([None, 1, 1, 1], "f1"), fixed([1, 1, 1, 1], "logged", weight=0)]
    scores = score(terms, PROMPTS, TEXTS)
    assert math.isnan(scores.total[0])
    assert scores.total[1:].tolist() == [1, 1, 1]
    assert scores.terms["logged"].tolist() == [1, 1, 1, 1]


def test_no_completions_have_no_scores() -> None:
    scores = score([fixed([])], [], [], first=True)
    assert scores.total.shape == (0,)
    assert scores.unscored == 0
