"""Every recipe of the catalog builds, learns, and gets along with every other or says why not."""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch

from polyopt.errors import RecipeError
from polyopt.ideas import build, load_catalog
from polyopt.parts import load_all_parts, walk
from polyopt.trainer import Trainer
from tests.tiny import TINY_NUMBERS, tiny_policy, tiny_task

IDEAS = sorted(load_catalog())
STEPS = 25
MARGIN = 0.2
"""Accuracy that a recipe gains on the tiny task in 25 steps, mean of three seeds."""


def overrides(expression: str) -> dict[str, object]:
    """The tiny numbers, except where the idea is about one of them."""
    claimed = {slot for slot, origin in build(expression).origins.items() if origin.claimed}
    return {path: value for path, value in TINY_NUMBERS.items() if path not in claimed}


def runnable(idea: str) -> str:
    """The idea itself if it says how rewards become credit; else the idea added to GRPO."""
    alone = build(idea).origins
    return idea if "advantages.estimator" in alone else f"grpo+{idea}"


def learn(expression: str, seed: int) -> float:
    """Accuracy over the last five steps less that of the first three."""
    recipe = build(expression, overrides(expression))
    trainer = Trainer(tiny_policy(seed), tiny_task(), recipe, steps=STEPS, seed=seed)
    course = [trainer.step().metrics["accuracy"] for _ in range(STEPS)]
    return sum(course[-5:]) / 5 - sum(course[:3]) / 3


@pytest.mark.parametrize("idea", IDEAS)
def test_recipe_learns_the_tiny_task(idea: str) -> None:
    gains = [learn(runnable(idea), seed) for seed in range(3)]
    assert sum(gains) / 3 > MARGIN, gains


def test_every_pair_builds_or_names_both_ideas_and_the_slot() -> None:
    for first, second in itertools.permutations(IDEAS, 2):
        try:
            build(f"{first}+{second}")
        except RecipeError as error:
            message = str(error)
            assert f"'{first}'" in message or f"'{second}'" in message, message
            assert "Drop" in message or "name only one" in message or "needs" in message, message


def test_random_triples_train_with_finite_numbers() -> None:
    draw = random.Random(0)
    trained = 0
    while trained < 12:
        expression = "+".join(draw.sample(IDEAS, 3))
        try:
            recipe = build(expression, overrides(expression))
        except RecipeError:
            continue
        trainer = Trainer(tiny_policy(), tiny_task(), recipe, steps=2)
        for _ in range(2):
            metrics = trainer.step().metrics
            assert all(math.isfinite(v) for k, v in metrics.items()), (expression, metrics)
        assert all(p.isfinite().all() for p in trainer.policy.trainable_parameters()), expression
        trained += 1


def test_every_registered_part_is_used_by_an_idea_or_a_default() -> None:
    """A part that nobody can reach from an expression is not done."""
    used = {
        type(item) if not hasattr(item, "__name__") else item for _, item in walk(build("grpo"))
    }
    for idea in IDEAS:
        for _, item in walk(build(idea)):
            used.add(item if hasattr(item, "__name__") else type(item))
    unreachable = sorted(k for k, info in load_all_parts().items() if info.make not in used)
    assert unreachable == ALLOWED, unreachable


ALLOWED = ["updates.schedule/cosine"]
"""Parts that no paper stands behind: reachable through `Recipe.claim` in a user's own idea."""


def test_building_leaves_the_base_recipe_alone() -> None:
    torch.testing.assert_close(build("grpo").rollouts.per_prompt, build("dapo").rollouts.per_prompt)
    assert build("grpo") == build("grpo")
