"""Golden answers: a demonstration takes a rollout's place where all rollouts failed."""

from __future__ import annotations

import torch
from jaxtyping import Bool
from torch import Tensor

from polyopt.batch import Batch
from polyopt.parts import part
from polyopt.selection.screens import verdict


@part("selection.screens", needs={"demonstration"}, min_rollouts=2)
def gold_where_all_failed(batch: Batch) -> Bool[Tensor, " N"]:
    """Keeps a demonstration only where the prompt's rollouts all failed, in the last one's place.

    Right is a verdict above 0. A group without a demonstration, or with a right rollout, trains on
    its own rollouts alone; the number of rollouts in a group stays the same either way. The last is
    the one with the largest rollout id.

    GCPO, arXiv 2510.07790 (reconstructed from abstract and summary: one answer, the last place).
    """
    index, shown = batch.group_index, batch["demonstration"] > 0
    groups = int(index.max()) + 1 if len(index) else 0

    def any_in_group(rows: Tensor) -> Tensor:
        return rows.new_zeros(groups).index_put((index[rows],), torch.tensor(True))[index]

    solved = any_in_group((verdict(batch) > 0) & ~shown)
    golden = ~solved & any_in_group(shown)
    ids = torch.where(shown, -1, batch.rollout)
    newest = ids.new_full((groups,), -1).scatter_reduce(0, index, ids, "amax")[index]
    return torch.where(shown, golden, ~(golden & (ids == newest)))
