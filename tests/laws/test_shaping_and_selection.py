"""The laws of reward shaping, screens and selection parts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from polyopt.batch import Batch
from polyopt.parts import PartInfo
from tests.laws.batches import names, parts_in, ragged_batch, renamed, widened

SHAPING = parts_in("rewards.shaping")
SCREENS = parts_in("selection.screens")
SELECTION = parts_in("selection.parts")


def run(info: PartInfo, batch: Batch) -> Any:
    part: Any = info.example()
    return part(batch)


def order_of(batch: Batch) -> torch.Tensor:
    return torch.randperm(len(batch), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("info", SHAPING, ids=names(SHAPING))
def test_shaping_follows_its_rollouts_under_permutation_padding_and_renaming(
    info: PartInfo,
) -> None:
    batch = ragged_batch()
    shaped, order = run(info, batch).rewards, order_of(batch)
    torch.testing.assert_close(run(info, batch.select(order)).rewards, shaped[order])
    torch.testing.assert_close(run(info, widened(batch)).rewards, shaped)
    torch.testing.assert_close(run(info, renamed(batch)).rewards, shaped)
    assert shaped.isfinite().all()


@pytest.mark.parametrize("info", SHAPING, ids=names(SHAPING))
def test_shaping_ignores_unrelated_prompts_unless_the_method_says_so(info: PartInfo) -> None:
    batch = ragged_batch()
    mine = batch.group == 7
    alone = run(info, batch.select(mine)).rewards
    if "couples-prompts" not in info.claims:
        torch.testing.assert_close(alone, run(info, batch).rewards[mine])


@pytest.mark.parametrize("info", SHAPING, ids=names(SHAPING))
def test_dense_rewards_add_up_to_the_total(info: PartInfo) -> None:
    shaped = run(info, ragged_batch())
    if "token_rewards" in shaped:
        live = shaped.mask.any(1)
        dense = shaped["token_rewards"].masked_fill(~shaped.mask, 0.0).sum(1)
        torch.testing.assert_close(dense[live], shaped.rewards[live])


@pytest.mark.parametrize("info", SHAPING, ids=names(SHAPING))
def test_shaping_changes_no_column_in_place(info: PartInfo) -> None:
    batch = ragged_batch()
    before = {name: column.clone() for name, column in batch.columns.items()}
    rewards = batch.rewards.clone()
    run(info, batch)
    torch.testing.assert_close(batch.rewards, rewards)
    for name, column in before.items():
        torch.testing.assert_close(batch[name], column)


@pytest.mark.parametrize("info", SCREENS, ids=names(SCREENS))
def test_screens_follow_their_rollouts(info: PartInfo) -> None:
    batch = ragged_batch()
    kept, order = run(info, batch), order_of(batch)
    assert kept.dtype == torch.bool
    assert (run(info, batch.select(order)) == kept[order]).all()
    assert (run(info, renamed(batch)) == kept).all()


@pytest.mark.parametrize("info", SELECTION, ids=names(SELECTION))
def test_selection_follows_its_rollouts_and_stays_inside_the_mask(info: PartInfo) -> None:
    batch = ragged_batch()
    chosen = run(info, batch)
    assert not (chosen.loss_mask & ~chosen.mask).any()
    order = order_of(batch)
    moved = run(info, batch.select(order))
    trained = {int(r): m.tolist() for r, m in zip(chosen.rollout, chosen.loss_mask, strict=True)}
    again = {int(r): m.tolist() for r, m in zip(moved.rollout, moved.loss_mask, strict=True)}
    assert trained == again


@pytest.mark.parametrize("info", SELECTION, ids=names(SELECTION))
def test_selection_survives_an_all_masked_batch(info: PartInfo) -> None:
    batch = ragged_batch()
    nothing = batch.replace(mask=torch.zeros_like(batch.mask))
    assert not run(info, nothing).loss_mask.any()
