"""The laws that every advantage part satisfies (DESIGN, section 6)."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from polyopt.advantages.stage import Advantages
from polyopt.batch import Batch
from polyopt.parts import PartInfo
from tests.laws.batches import names, parts_in, ragged_batch, renamed, widened

PARTS = parts_in("advantages.estimator", "advantages.shaping")
every_part = pytest.mark.parametrize("info", PARTS, ids=names(PARTS))


def stage_with(info: PartInfo) -> Advantages:
    """The advantages stage with one part in its slot."""
    part: Any = info.example()
    if info.slot == "advantages.estimator":
        return Advantages(estimator=part)
    return Advantages(shaping=(part,))


def credit(info: PartInfo, batch: Batch) -> Tensor:
    return stage_with(info)(batch)["advantages"]


@every_part
@pytest.mark.parametrize("seed", range(3))
def test_permuting_rollouts_permutes_advantages(info: PartInfo, seed: int) -> None:
    batch = ragged_batch(seed)
    order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(credit(info, batch.select(order)), credit(info, batch)[order])


@every_part
def test_more_padding_changes_nothing(info: PartInfo) -> None:
    batch = ragged_batch()
    torch.testing.assert_close(credit(info, widened(batch))[:, : batch.width], credit(info, batch))


@every_part
def test_renaming_groups_changes_nothing(info: PartInfo) -> None:
    batch = ragged_batch()
    torch.testing.assert_close(credit(info, renamed(batch)), credit(info, batch))


@every_part
def test_zero_outside_the_mask(info: PartInfo) -> None:
    batch = widened(ragged_batch())
    assert (credit(info, batch)[~batch.mask] == 0).all()


@every_part
@pytest.mark.parametrize("reward", [0.0, 1.0, -3.7])
def test_equal_rewards_give_finite_numbers(info: PartInfo, reward: float) -> None:
    batch = ragged_batch()
    flat = batch.replace(rewards=torch.full_like(batch.rewards, reward))
    assert credit(info, flat).isfinite().all()


@every_part
def test_lone_empty_and_masked_rollouts_give_finite_numbers(info: PartInfo) -> None:
    batch = ragged_batch()
    assert credit(info, batch.select(batch.group == 90)).isfinite().all()
    nothing = batch.replace(mask=torch.zeros_like(batch.mask))
    assert (credit(info, nothing) == 0).all()
    some = batch.replace(mask=batch.mask & (torch.arange(len(batch)) % 3 > 0)[:, None])
    assert credit(info, some).isfinite().all()


@every_part
def test_unscored_rollouts_get_zero_and_shift_no_baseline(info: PartInfo) -> None:
    batch = ragged_batch()
    known = torch.arange(len(batch)) % 4 != 1
    rewards = batch.rewards.masked_fill(~known, float("nan"))
    found = credit(info, batch.replace(rewards=rewards))
    assert (found[~known] == 0).all()
    torch.testing.assert_close(found[known], credit(info, batch.select(known)))


@every_part
def test_zero_on_equal_rewards_where_the_method_claims_it(info: PartInfo) -> None:
    batch = ragged_batch()
    flat = batch.replace(rewards=torch.full_like(batch.rewards, 0.1))
    if "zero-on-equal-rewards" in info.claims:
        assert (credit(info, flat) == 0).all()


BY_ROW = {
    "agent-turn-z-score": "a row is a turn",
    "anchor-states": "a row holds whole environment steps",
    "branch-credit": "the prefix tree is made of rows",
    "extended-gae": "values are followed along a row",
    "generalized-advantage": "values are followed along a row",
    "key-tokens": "a row's last token is its stop token",
    "module-call-z-score": "a row is a call",
    "own-variant": "a row answers a variant",
    "rank-z-score": "a row's last token is its stop token",
    "segment-gain": "cuts are places in a row",
    "sibling-baseline": "a row is a leaf of the tree",
    "sibling-bernoulli-score": "a row is a leaf of the tree",
    "sibling-z-score": "a row is a leaf of the tree",
    "turn-credit": "turns are runs of a row's tokens",
}
"""Parts whose credit depends on what one row holds, and why."""


def in_two_rows(batch: Batch) -> Batch:
    """The same rollouts, each cut in the middle into two rows."""
    twice = torch.arange(len(batch)).repeat_interleave(2)
    early = (torch.arange(batch.width)[None] < batch["lengths"][:, None] // 2)[twice]
    first = (torch.arange(len(twice)) % 2 == 0)[:, None]
    cut = batch.select(twice)
    return cut.replace(mask=cut.mask & torch.where(first, early, ~early))


@pytest.mark.parametrize(
    "info", [i for i in PARTS if i.name not in BY_ROW], ids=lambda info: info.name
)
def test_a_rollout_of_two_rows_gets_the_credit_of_one(info: PartInfo) -> None:
    batch = ragged_batch()
    cut = credit(info, in_two_rows(batch))
    torch.testing.assert_close(cut[0::2] + cut[1::2], credit(info, batch))


def test_the_laws_notice_a_part_that_breaks_them() -> None:
    """The laws aren't vacuous: a part that reads its position fails the first of them."""

    @dataclasses.dataclass(frozen=True)
    class ByPosition:
        def __call__(self, advantages: Tensor, batch: Batch) -> Tensor:
            return advantages + torch.arange(len(batch))[:, None]

    batch = ragged_batch()
    order = torch.arange(len(batch) - 1, -1, -1)
    stage = Advantages(estimator=ByPosition())
    moved, still = stage(batch.select(order))["advantages"], stage(batch)["advantages"][order]
    assert not torch.allclose(moved, still)
