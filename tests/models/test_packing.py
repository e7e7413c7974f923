from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from polyopt.batch import Batch
from polyopt.models.packing import micro_batches, rows_of


def test_rows_hold_prompt_then_completion() -> None:
    batch = Batch.of(
        mask=torch.tensor([[1, 1, 0], [0, 1, 1]]),
        tokens=torch.tensor([[5, 6, 0], [7, 8, 9]]),
        lengths=torch.tensor([2, 3]),
        prompt_tokens=torch.tensor([[1, 2, 3], [4, 0, 0]]),
        prompt_lengths=torch.tensor([3, 1]),
    )
    rows = rows_of(batch)
    assert rows.input_ids.tolist() == [[1, 2, 3, 5], [4, 7, 8, 9]]
    assert rows.targets.tolist() == [5, 6, 8, 9]
    assert rows.position.tolist() == [2, 3, 1, 2]
    assert rows.scatter(rows.targets).tolist() == [[5, 6, 0], [0, 8, 9]]


def test_lengths_not_padding_ids_decide_what_is_text() -> None:
    batch = Batch.of(
        mask=torch.tensor([[1, 1, 1, 0, 0]]),
        tokens=torch.tensor([[5, 0, 0, 0, 0]]),
        lengths=torch.tensor([3]),
        prompt_tokens=torch.tensor([[0, 4]]),
        prompt_lengths=torch.tensor([2]),
    )
    rows = rows_of(batch)
    assert rows.input_ids.tolist() == [[0, 4, 5, 0]]
    assert rows.targets.tolist() == [5, 0, 0]


def test_an_empty_prompt_is_an_error_only_if_its_first_token_trains() -> None:
    columns = {
        "tokens": torch.tensor([[5, 6]]),
        "lengths": torch.tensor([2]),
        "prompt_tokens": torch.zeros(1, 0, dtype=torch.long),
        "prompt_lengths": torch.tensor([0]),
    }
    with pytest.raises(ValueError, match="prompt is empty"):
        rows_of(Batch.of(mask=torch.tensor([[1, 1]]), **columns))
    rows = rows_of(Batch.of(mask=torch.tensor([[0, 1]]), **columns))
    assert rows.input_ids.tolist() == [[5]]
    assert rows.targets.tolist() == [6]


def test_a_mask_beyond_the_completion_is_an_error(batch_of: Callable[..., Batch]) -> None:
    batch = batch_of()
    with pytest.raises(ValueError, match="beyond the completion"):
        rows_of(batch.replace(mask=torch.ones_like(batch.mask)))


@pytest.mark.parametrize("budget", [1, 14, 30, 1000])
def test_micro_batches_hold_each_row_once_within_the_budget(
    batch_of: Callable[..., Batch], budget: int
) -> None:
    batch = batch_of(rows=13)
    split = micro_batches(batch, budget)
    assert sorted(torch.cat(split).tolist()) == list(range(13))
    totals = batch["prompt_lengths"] + batch["lengths"]
    for rows in split:
        assert len(rows) == 1 or len(rows) * int(totals[rows].max()) <= budget
    again = micro_batches(batch, budget)
    assert all(torch.equal(a, b) for a, b in zip(split, again, strict=True))


def test_micro_batches_sort_by_length() -> None:
    batch = Batch.of(
        tokens=torch.zeros(4, 9, dtype=torch.long),
        lengths=torch.tensor([9, 1, 9, 1]),
        prompt_tokens=torch.zeros(4, 1, dtype=torch.long),
        prompt_lengths=torch.ones(4, dtype=torch.long),
    )
    assert [rows.tolist() for rows in micro_batches(batch, 20)] == [[0, 2], [1, 3]]
