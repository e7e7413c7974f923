"""Advantages combine by weight as well as by chaining."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from polyopt.advantages.mixture import Member, Mixture
from polyopt.advantages.stage import Advantages
from polyopt.batch import Batch
from polyopt.errors import RecipeError
from polyopt.ideas import build, find_idea, mix, names_in
from polyopt.recipe import Recipe
from polyopt.trainer import Trainer
from tests.laws.batches import ragged_batch
from tests.tiny import TINY_NUMBERS, tiny_policy, tiny_task


def test_a_mix_is_the_weighted_sum_of_its_members_advantages() -> None:
    batch = ragged_batch()
    mixed = build("mix(0.7*rloo,0.3*ktae)").advantages(batch)
    rloo, ktae = (build(name).advantages(batch)["advantages"] for name in ("rloo", "grpo+ktae"))
    torch.testing.assert_close(mixed["advantages"], 0.7 * rloo + 0.3 * ktae)
    torch.testing.assert_close(mixed["advantages/0.7*rloo"], 0.7 * rloo)


def test_python_and_expression_say_the_same() -> None:
    grpo, ktae = find_idea("grpo"), find_idea("ktae")
    assert mix(0.7 * grpo, 0.3 * ktae)(Recipe()) == build("mix(0.7*grpo, 0.3*ktae)")


def test_a_mix_brings_what_its_members_bring_and_joins_other_ideas() -> None:
    recipe = build("clip-higher+mix(0.5*grpo, 0.5*grpo+ktae)+greso")
    assert recipe.objective.surrogate.clip_high == 0.28  # type: ignore[attr-defined]
    assert [m.weight for m in recipe.advantages.estimator.members] == [0.5, 0.5]  # type: ignore[attr-defined]
    assert len(recipe.prompts.filters) == 1
    assert names_in("dapo+mix(0.5*a+b,0.5*c)+reinforce++") == [
        "dapo",
        "mix(0.5*a+b,0.5*c)",
        "reinforce++",
    ]


def test_what_members_share_is_computed_once() -> None:
    @dataclass
    class Counting:
        calls: list[int] = field(default_factory=list, compare=False)

        def __call__(self, advantages: Tensor, batch: Batch) -> Tensor:
            self.calls.append(1)
            return advantages + batch.rewards[:, None]

    def double(advantages: Tensor, batch: Batch) -> Tensor:
        return 2 * advantages

    shared = Counting()
    mixture = Mixture((Member("a", 1.0, (shared,)), Member("b", 0.5, (shared, double))))
    batch = ragged_batch()
    found = Advantages(estimator=mixture)(batch)["advantages"]
    torch.testing.assert_close(found, 2 * batch.rewards[:, None] * batch.mask)
    assert len(shared.calls) == 1


def test_the_log_shows_each_members_contribution() -> None:
    recipe = build("mix(0.7*grpo,0.3*ktae)", TINY_NUMBERS)
    metrics = Trainer(tiny_policy(), tiny_task(), recipe, steps=1).step().metrics
    assert metrics["advantage/0.7*grpo"] > 0
    assert metrics["advantage/0.3*ktae"] > 0


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("mix(0.7*grpo)", "two weighted ideas"),
        ("mix(grpo,ktae)", r"'grpo' in a mix: write weight\*idea"),
        ("mix(0.5*grpo,0.5*k2)", "'k2' in .* assigns no advantages"),
        ("mix(0.5*grpo,0.5*nothing)", "no idea called 'nothing'"),
        ("rloo+mix(0.5*grpo,0.5*ktae)", "'rloo' and 'mix.*' both claim advantages.estimator"),
        ("mix(0.5*grpo,0.5*ktae", "is not an expression"),
    ],
)
def test_a_bad_mix_says_what_is_wrong(expression: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        build(expression)
