"""Hints while sampling, none while training."""

from __future__ import annotations

import dataclasses

import torch
from tests.tiny import TINY_NUMBERS, tiny_policy, tiny_task

from polyopt.ideas import build
from polyopt.rewards.protocol import RewardTerm
from polyopt.tasks.task import Task
from polyopt.trainer import Trainer


def task_with(reward: float) -> Task:
    """The tiny task, where every answer gets one reward."""
    term = RewardTerm("accuracy", lambda prompts, texts: [reward] * len(texts), correctness=True)
    return dataclasses.replace(tiny_task(), rewards=(term,))


def trainer_on(task: Task) -> Trainer:
    return Trainer(tiny_policy(), task, build("guide", TINY_NUMBERS), steps=1)


def test_failed_prompts_get_hinted_rollouts_whose_rows_hold_the_plain_prompt() -> None:
    trainer = trainer_on(task_with(0.0))
    seen = trainer.step().collected.seen
    hinted = seen["guided"] > 0
    assert hinted.sum() == (~hinted).sum() == 32
    for group in torch.unique(seen.group):
        rows = seen.group == group
        assert len(torch.unique(seen["prompt_tokens"][rows], dim=0)) == 1
    plain = trainer.policy.evaluate_all(
        seen, trainer.recipe.rollouts.distribution, frozenset(), 10_000
    ).logp
    gap = ((plain - seen["logp_sampler"]).abs() * seen.mask).amax(1)
    assert (gap[~hinted] < 1e-3).all()
    assert (gap[hinted] > 1e-3).any()


def test_solved_prompts_get_no_hints() -> None:
    seen = trainer_on(task_with(1.0)).step().collected.seen
    assert (seen["guided"] == 0).all()
