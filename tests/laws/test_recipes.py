"""Every recipe of the catalog builds, learns, and gets along with every other or says why not."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from polyopt.advantages.mixture import Mixture
from polyopt.batch import Batch
from polyopt.columns import GIVEN
from polyopt.errors import RecipeError
from polyopt.ideas import build, load_catalog
from polyopt.parts import load_all_parts, part, walk
from polyopt.rollouts.protocol import TokenTexts
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


@dataclass(frozen=True)
class TinyEnvironment:
    """Gives the columns that only an environment has: every token is a step, every row a turn."""

    def __call__(self, batch: Batch, token_texts: TokenTexts) -> dict[str, Tensor]:
        place = torch.arange(batch.width).expand_as(batch.mask).contiguous()
        tokens, rows = batch["tokens"], torch.arange(len(batch))
        right = torch.tensor([float(text[:1] in ("a", "b")) for text in batch.texts])
        return {
            "step": place,
            "state": torch.where(place == 0, 0, tokens.roll(1, 1) + 1),
            "action": tokens,
            "next_state": tokens + 1,
            "turn_reward": right,
            "result_run": torch.ones(len(batch)),
            "turn": torch.zeros(len(batch), dtype=torch.long),
            "agent": torch.zeros(len(batch), dtype=torch.long),
            "team_reward": right,
            "module": torch.zeros(len(batch), dtype=torch.long),
            "call": torch.zeros(len(batch), dtype=torch.long),
            "variant": rows % 2,
            "own_variant": torch.ones(len(batch)),
            "step_label": right[:, None].expand(-1, batch.width).contiguous(),
            "first_call": torch.where(right > 0, 0, -1),
            "answer_tokens": place == 0,
        }


annotation = part("rollouts.annotations", name="tiny-environment", provides=GIVEN)
ENVIRONMENT = annotation(TinyEnvironment)()

NO_SIGNAL = {
    "gtpo-entropy": "each outcome's tokens are centred by themselves: right and wrong cancel out",
    "grpo-s": "each outcome's rollouts are centred by themselves: right and wrong cancel out",
    "variational-reasoning-likelihood": "weighs by a forced reference answer; the task has none",
}
"""Ideas that can't learn this task by their own equations, and why."""

NUMBERS = {"gtpo-trajectory": {"advantages.entropy_gate.threshold": 3.0}}
"""Numbers made for large models that a policy of seventeen tokens can't meet."""


def tiny_trainer(idea: str, seed: int) -> Trainer:
    """A trainer of the idea on the tiny task."""
    expression = runnable(idea)
    recipe = build(expression, overrides(expression) | NUMBERS.get(idea, {}))
    if recipe.given():
        recipe = recipe.append("rollouts.annotations", ENVIRONMENT)
    policy = tiny_policy(seed)
    teacher = tiny_policy(seed + 100)
    models = {"teacher": teacher, "second": teacher}
    return Trainer(policy, tiny_task(), recipe, steps=STEPS, seed=seed, **models)


def learn(idea: str, seed: int) -> float:
    """Accuracy over the last five steps less that of the first three."""
    trainer = tiny_trainer(idea, seed)
    course = [trainer.step().metrics["accuracy"] for _ in range(STEPS)]
    return sum(course[-5:]) / 5 - sum(course[:3]) / 3


@pytest.mark.parametrize("idea", [name for name in IDEAS if name not in NO_SIGNAL])
def test_recipe_learns_the_tiny_task(idea: str) -> None:
    gains = [learn(idea, seed) for seed in range(3)]
    assert sum(gains) / 3 > MARGIN, gains


@pytest.mark.parametrize("idea", NO_SIGNAL)
def test_what_is_said_to_hold_no_signal_holds_none(idea: str) -> None:
    assert learn(idea, seed=0) < MARGIN, "it learns after all: take it off the list"


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
        if recipe.given():
            recipe = recipe.append("rollouts.annotations", ENVIRONMENT)
        teacher = tiny_policy(7)
        models = {"teacher": teacher, "second": teacher}
        trainer = Trainer(tiny_policy(), tiny_task(), recipe, steps=2, **models)
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
    used.add(Mixture)  # by `mix(...)`
    ours = {k: v for k, v in load_all_parts().items() if v.make.__module__.startswith("polyopt.")}
    assert not sorted(k for k, info in ours.items() if info.make not in used)


def test_building_leaves_the_base_recipe_alone() -> None:
    torch.testing.assert_close(build("grpo").rollouts.per_prompt, build("dapo").rollouts.per_prompt)
    assert build("grpo") == build("grpo")
