"""Samplers that grow trees, through a real engine and collector."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.tiny import tiny_policy, tiny_task

from polyopt.advantages.segment_trees import SegmentTree
from polyopt.batch import Batch
from polyopt.ideas import build
from polyopt.rollouts.cutpoints import CutpointSampling, cutpoints
from polyopt.rollouts.forks import EntropyForkSampling, RandomForkSampling, best_candidate
from polyopt.rollouts.segment_trees import SegmentTreeSampling
from polyopt.rollouts.staged_prefixes import StagedSampling
from polyopt.trainer import Trainer

NUMBERS = {"rollouts.max_tokens": 6, "rollouts.per_prompt": 8, "prompts.per_step": 3}


def collected(sampler: Any, **numbers: int) -> tuple[Trainer, Batch]:
    """A step's fresh rollouts with a sampler in place."""
    recipe = build("grpo", NUMBERS | numbers).claim("rollouts.sampler", sampler)
    trainer = Trainer(tiny_policy(scale=0.5), tiny_task(), recipe, steps=1)
    return trainer, trainer.collector.collect(0).seen


@pytest.mark.parametrize(
    "sampler",
    [EntropyForkSampling(), RandomForkSampling(), SegmentTreeSampling(), CutpointSampling(2, 1)],
)
def test_every_token_is_on_policy_with_its_own_log_probability(sampler: Any) -> None:
    trainer, batch = collected(sampler)
    found = trainer.policy.evaluate_all(batch, trainer.recipe.rollouts.distribution, set(), 4096)
    torch.testing.assert_close(
        found.logp[batch.mask], batch["logp_sampler"][batch.mask], atol=1e-4, rtol=1e-4
    )
    inside = torch.arange(batch.width) < batch["lengths"][:, None]
    assert (batch.mask == inside).all()
    assert batch.scored.all()


@pytest.mark.parametrize("per_prompt", [3, 7, 8, 15])
def test_forks_give_as_many_rollouts_as_asked_for(per_prompt: int) -> None:
    _, batch = collected(EntropyForkSampling(2, 1), **{"rollouts.per_prompt": per_prompt})
    sizes = torch.bincount(batch.group_index)
    assert (sizes <= per_prompt).all()
    assert (sizes >= min(per_prompt, 2)).any()
    if per_prompt > 3:
        assert batch["tree"].max() >= 1


def test_a_branch_keeps_what_stands_before_its_fork() -> None:
    _, batch = collected(RandomForkSampling(points=3, branches=1))
    first_tree = batch.select((batch["tree"] == 0) & (batch.group == batch.group[0]))
    tokens = first_tree["tokens"]
    shared = (tokens[1:] == tokens[:1]).long().cumprod(1).sum(1)
    assert (shared > 0).any()


def test_leaves_of_a_segment_tree_share_the_segments_that_they_share_tokens_in() -> None:
    _, batch = collected(SegmentTreeSampling(depth=3))
    assert torch.bincount(batch.group_index).max() <= 8
    tree = SegmentTree.of(batch)
    assert tree.values(batch.rewards).isfinite().all()
    for i in range(len(batch)):
        for j in range(i):
            same = (batch["segment"][i] == batch["segment"][j]) & batch.mask[i] & batch.mask[j]
            if batch.group[i] == batch.group[j] and same.any():
                assert (batch["tokens"][i] == batch["tokens"][j])[same].all()
    two_levels = torch.unique(batch["segment"][batch.mask])
    assert len(two_levels) > 2


def test_values_stand_at_cutpoints_only() -> None:
    _, batch = collected(CutpointSampling(continuations=3, interval=2, rho=0.9))
    cut = batch["cut"] > 0
    assert cut.any()
    assert not (cut & ~batch.mask).any()
    assert (batch["prefix_values"][~cut] == 0).all()
    assert ((batch["prefix_values"] * 3).round(decimals=4) % 1 == 0).all()


def test_cutpoints_are_every_nth_choice() -> None:
    assert cutpoints([-1.0, -0.01, -1.0, -1.0, -1.0], 2, -0.1) == [0, 3]
    assert cutpoints([-0.01, -0.02], 1, -0.1) == []


def test_staged_rollouts_take_turns_along_the_solution() -> None:
    _, batch = collected(StagedSampling(shares=(0.0, 0.5, 1.0)))
    ends = (batch["path"] >= 0).sum(1)
    assert sorted(torch.bincount(ends)[1:].tolist(), reverse=True) == [9, 9, 6]
    longest = [int(batch["prompt_lengths"][ends == n].max()) for n in (1, 2, 3)]
    assert longest[0] < longest[1] < longest[2]


def test_the_first_of_equally_good_candidates_goes_on() -> None:
    assert best_candidate(torch.tensor([[0.0, 1.0, 1.0], [0.5, 0.5, 0.5]])).tolist() == [1, 0]
