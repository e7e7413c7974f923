"""Questions of which several options are right."""

from __future__ import annotations

import pytest

from polyopt.rewards.choices import soft_choice_match


@pytest.mark.parametrize(
    ("text", "answer", "reward"),
    [
        ("<answer>A, C</answer>", "A, C", 1.0),
        ("<answer>A</answer>", ["A", "C"], 0.5),
        ("<answer>A, B</answer>", "A, C", 0.0),
        ("I think A is wrong.\nC and D", "C, D", 1.0),
        ("", "A", 0.0),
        ("<answer>none</answer>", "A", 0.0),
        ("A", "seven", None),
    ],
)
def test_only_right_options_earn_their_share(text: str, answer: object, reward: float) -> None:
    assert soft_choice_match(text, answer) == reward
