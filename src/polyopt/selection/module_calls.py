"""Which calls of a program's modules go on, so that the k-th calls of all rollouts compare."""

from __future__ import annotations

import torch
from jaxtyping import Bool
from torch import Tensor

from polyopt.advantages.module_calls import ModuleCalls
from polyopt.batch import Batch
from polyopt.parts import part


@part("selection.screens", needs={"module", "call"}, min_rollouts=2)
def aligned_calls(batch: Batch) -> Bool[Tensor, " N"]:
    """Keeps the first n calls of each module, n the fewest that any rollout of the group has.

    A module that some rollout never called is skipped for that prompt. Columns as for
    `ModuleCalls`. The mode "truncate" of mmGRPO, arXiv 2508.04660.
    """
    return ModuleCalls.of(batch).aligned


def filled_calls(batch: Batch) -> Batch:
    """The batch with each rollout's last call of a module repeated up to the group's most.

    A repeated row counts again in mean, deviation and loss, under the `call` at which it stands
    in. A module that some rollout never called is skipped for that prompt. Columns as for
    `ModuleCalls`; rows are repeated, so this acts before credit is assigned and fills no slot of
    a recipe. The mode "fill" with its choice "max", mmGRPO, arXiv 2508.04660.
    """
    calls = ModuleCalls.of(batch)
    last = calls.place == calls.calls - 1
    times = torch.where(last, calls.most - calls.place, 1) * (calls.fewest > 0)
    row = torch.repeat_interleave(torch.arange(len(batch), device=times.device), times)
    nth = torch.arange(len(row), device=row.device) - (times.cumsum(0) - times)[row]
    return batch.select(row).replace(call=calls.place[row] + nth)
