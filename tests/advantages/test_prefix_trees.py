"""Prefix trees, against the same written with Python dictionaries."""

from __future__ import annotations

from collections import defaultdict

import pytest
import torch
from torch import Tensor

from polyopt.advantages.prefix_trees import BranchCredit, PrefixTree, next_token_gain
from polyopt.batch import Batch
from polyopt.groups import group_z_score
from polyopt.objectives.aggregation import token_mean
from polyopt.objectives.prefixes import PerDistinctPrefix
from polyopt.selection.prefix_tokens import first_of_each_branch, share_prefixes


def batch_of(seed: int, letters: int = 3) -> Batch:
    """Thirty short completions of three prompts from few letters, so that many coincide."""
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 7, (30,), generator=draw)
    mask = torch.arange(6) < lengths[:, None]
    return Batch.of(
        mask=mask,
        group=torch.randint(0, 3, (30,), generator=draw) * 11,
        rewards=torch.rand(30, generator=draw, dtype=torch.float64),
        tokens=torch.randint(0, letters, (30, 6), generator=draw),
        lengths=lengths,
    )


def prefixes(batch: Batch, row: int) -> list[tuple[int, ...]]:
    """A row's prefixes, from the empty one to the whole completion."""
    length = int(batch["lengths"][row])
    whole = tuple(batch["tokens"][row, :length].tolist())
    return [(int(batch.group[row]), *whole[:t]) for t in range(length + 1)]


@pytest.mark.parametrize("seed", range(5))
def test_means_and_counts_are_those_of_a_dictionary_of_prefixes(seed: int) -> None:
    batch = batch_of(seed)
    members = defaultdict(list)
    for row in range(len(batch)):
        for prefix in prefixes(batch, row):
            members[prefix].append(float(batch.rewards[row]))
    tree = PrefixTree.of(batch)
    mean, count = tree.mean(batch.rewards), tree.count()
    assert tree.size >= len(members)
    for row in range(len(batch)):
        found = prefixes(batch, row)
        for t, prefix in enumerate(found):
            assert int(count[row, t]) == len(members[prefix])
            expected = sum(members[prefix]) / len(members[prefix])
            torch.testing.assert_close(float(mean[row, t]), expected)
        assert (count[row, len(found) :] == 0).all()
        assert (mean[row, len(found) :] == 0).all()


@pytest.mark.parametrize("seed", range(5))
def test_a_token_branches_where_its_prefix_has_two_ways_on(seed: int) -> None:
    batch = batch_of(seed)
    ways = defaultdict(set)
    for row in range(len(batch)):
        for before, after in zip(prefixes(batch, row), prefixes(batch, row)[1:], strict=False):
            ways[before].add(after)
    branching = PrefixTree.of(batch).branching()
    for row in range(len(batch)):
        found = prefixes(batch, row)
        for t in range(batch.width):
            expected = t < len(found) - 1 and len(ways[found[t]]) > 1
            assert bool(branching[row, t]) == expected


def test_rows_with_other_prompts_share_no_prefix() -> None:
    batch = batch_of(0)
    prompt = torch.arange(30)[:, None] % 2
    apart = batch.replace(prompt_tokens=prompt, prompt_lengths=torch.ones(30))
    same = batch.replace(prompt_tokens=prompt, prompt_lengths=torch.zeros(30))
    count = PrefixTree.of(batch).count()
    torch.testing.assert_close(PrefixTree.of(same).count(), count)
    assert PrefixTree.of(apart).count().sum() < count.sum()


def test_branch_credit_adds_up_to_the_score_where_no_completion_begins_another() -> None:
    tokens = torch.tensor([[1, 2, 3], [1, 2, 4], [1, 5, 3], [6, 2, 3]])
    rewards = torch.tensor([1.0, 0.0, 0.5, 1.0], dtype=torch.float64)
    batch = Batch.of(tokens=tokens, rewards=rewards, lengths=torch.full((4,), 3))
    credit = BranchCredit()(torch.zeros(4, 3, dtype=torch.float64), batch)
    score = group_z_score(rewards, batch.group_index, 1e-6)
    torch.testing.assert_close(credit.sum(1), score)


def test_identical_completions_give_no_credit_to_any_token() -> None:
    batch = Batch.of(
        tokens=torch.ones(4, 3, dtype=torch.long),
        rewards=torch.tensor([1.0, 0.0, 0.0, 1.0]),
        lengths=torch.full((4,), 3),
    )
    assert (next_token_gain(torch.zeros(4, 3), batch) == 0).all()
    assert not first_of_each_branch(batch).loss_mask.any()


@pytest.mark.parametrize("seed", range(3))
def test_every_branch_trains_exactly_once(seed: int) -> None:
    batch = batch_of(seed)
    tree, chosen = PrefixTree.of(batch), first_of_each_branch(batch)
    trained = tree.entered[chosen.loss_mask]
    assert len(trained.unique()) == len(trained)
    assert set(trained.tolist()) == set(tree.entered[tree.branching()].tolist())


def test_k_copies_of_a_completion_weigh_as_one() -> None:
    def weight(copies: int) -> Tensor:
        tokens = torch.tensor([[1, 2]] * copies + [[3, 4]])
        lengths = torch.full((len(tokens),), 2)
        batch = share_prefixes(
            Batch.of(tokens=tokens, lengths=lengths, rewards=torch.ones(1 + copies))
        )
        coefficients = PerDistinctPrefix(token_mean)(batch) * batch.mask.sum()
        return coefficients[:copies].sum()

    torch.testing.assert_close(weight(5), weight(1))
