"""Padded tensors of other trainers to a `Batch`, and rows that selection dropped."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from polyopt.batch import ENVIRONMENT, PADDING, Batch, Prompt
from polyopt.recipe import Recipe


def padded_batch(
    *,
    own: Bool[Tensor, "N T"],
    inside: Bool[Tensor, "N T"],
    group: Int[Tensor, " N"],
    rewards: Tensor,
    max_tokens: int,
    first_id: int = 0,
    prompts: Sequence[Prompt] = (),
    texts: Sequence[str] = (),
    columns: Mapping[str, Tensor],
) -> Batch:
    """A batch of rollouts, one a row, whose completions are padded on the right.

    Args:
        own: Tokens that the policy sampled.
        inside: Tokens of the completion: its own, a tool's, an environment's.
        group: Id of the prompt visit that each row belongs to.
        rewards: Total reward of each row [N]; NaN where nobody could score it.
        max_tokens: The completion limit in tokens.
        first_id: Rollout id of the first row.
        prompts: Prompt of each row.
        texts: Completion of each row.
        columns: Further columns; what stands outside `own` is set to 0 in those of floats [N, T].
    """
    n, device = len(own), own.device
    return Batch(
        mask=own,
        group=group,
        rollout=torch.arange(first_id, first_id + n, device=device),
        rewards=rewards,
        columns={
            "provenance": _provenance(own, inside),
            "fresh": own,
            "lengths": inside.sum(1),
            "max_tokens": torch.full((n,), float(max_tokens), device=device),
            **{name: _cleaned(column, own) for name, column in columns.items()},
        },
        prompts=tuple(prompts),
        texts=tuple(texts),
    )


def _provenance(own: Bool[Tensor, "N T"], inside: Bool[Tensor, "N T"]) -> Int[Tensor, "N T"]:
    padding = torch.full(own.shape, PADDING, device=own.device)
    return padding.masked_fill(inside, ENVIRONMENT).masked_fill(own, 0)


def _cleaned(column: Tensor, own: Bool[Tensor, "N T"]) -> Tensor:
    """A column of floats per token with 0 outside `own`; any other one as it is."""
    per_token = column.shape == own.shape and column.is_floating_point()
    return column.masked_fill(~own, 0.0) if per_token else column


def left_aligned(
    ids: Int[Tensor, "N P"], mask: Int[Tensor, "N P"]
) -> tuple[Int[Tensor, "N P"], Int[Tensor, " N"]]:
    """Left-padded token ids moved to the left, 0 beyond them, and their lengths."""
    order = mask.bool().int().argsort(dim=1, descending=True, stable=True)
    lengths = mask.bool().sum(1)
    moved = ids.gather(1, order)
    beyond = torch.arange(ids.shape[1], device=ids.device) >= lengths[:, None]
    return moved.masked_fill(beyond, 0), lengths


def group_ids(names: Sequence[Hashable]) -> Int[Tensor, " N"]:
    """One integer per distinct name, in order of appearance."""
    known: dict[Hashable, int] = {}
    return torch.tensor([known.setdefault(name, len(known)) for name in names])


def credit(recipe: Recipe, batch: Batch) -> Batch:
    """The rows that train, with advantages, masks and weights: screens to selection."""
    for screen in recipe.selection.screens:
        batch = batch.select(screen(batch))
    if not len(batch):
        return batch.replace(advantages=torch.zeros_like(batch.mask, dtype=batch.rewards.dtype))
    for shaping in recipe.rewards.shaping:
        batch = shaping(batch)
    batch = recipe.advantages(batch)
    for part in recipe.selection.parts:
        batch = part(batch)
    return batch


def rows_of_ids(batch: Batch, rollouts: Int[Tensor, " M"]) -> tuple[Tensor, Tensor]:
    """Which of some rollouts a batch still holds: their positions in the list, and in the batch.

    Both are in the order of the list.
    """
    place = {rollout: row for row, rollout in enumerate(batch.rollout.tolist())}
    found = [(i, place[r]) for i, r in enumerate(rollouts.tolist()) if r in place]
    index = torch.tensor(found, dtype=torch.long, device=rollouts.device).reshape(-1, 2)
    return index[:, 0], index[:, 1]
