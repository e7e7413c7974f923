"""Programs of several modules: the calls of one module, compared call by call across rollouts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from polyopt.advantages.statistics import spread
from polyopt.batch import Batch
from polyopt.groups import (
    group_count,
    group_max,
    group_min,
    group_size,
    group_z_score,
    subgroups,
)
from polyopt.parts import part


@dataclass(frozen=True)
class ModuleCalls:
    """Where each row stands among the calls of its module. A row is one call.

    Read from the columns [N] `module`, the module that was called, and `call`, which orders a
    rollout's calls (any increasing numbers).

    Attributes:
        unit: The pair (group, module) of each row, counted from 0. [N]
        place: Place of the row among its rollout's calls of the module, from 0. [N]
        calls: Calls of the module in the row's rollout. [N]
        fewest: Fewest calls of it in any rollout of the group; 0 if some rollout has none. [N]
        most: Most calls of it in any rollout of the group. [N]
    """

    unit: Int[Tensor, " N"]
    place: Int[Tensor, " N"]
    calls: Int[Tensor, " N"]
    fewest: Int[Tensor, " N"]
    most: Int[Tensor, " N"]

    @classmethod
    def of(cls, batch: Batch) -> ModuleCalls:
        """The calls of a batch."""
        group, rewards = batch.group_index, batch.rewards
        unit = subgroups(batch["module"], group)
        chain = subgroups(batch.rollout, unit)
        step = subgroups(batch["call"], chain)
        calls = group_count(chain, rewards)
        absent = _distinct(subgroups(batch.rollout, group), group) > _distinct(chain, unit)
        return cls(
            unit=unit,
            place=step - group_min(step.double(), chain).long(),
            calls=calls.long(),
            fewest=torch.where(absent, 0, group_min(calls, unit)).long(),
            most=group_max(calls, unit).long(),
        )

    @property
    def aligned(self) -> Bool[Tensor, " N"]:
        """Calls that every rollout of the group has."""
        return self.place < self.fewest


def _distinct(finer: Int[Tensor, " N"], index: Int[Tensor, " N"]) -> Int[Tensor, " N"]:
    """How many of the finer classes each row's class falls into."""
    owner = index.new_zeros(group_size(finer)).index_copy(0, finer, index)
    return torch.bincount(owner, minlength=group_size(index))[index]


@part(
    "advantages.estimator",
    needs={"module", "call"},
    min_rollouts=2,
    claims={"zero-on-equal-rewards"},
)
@dataclass(frozen=True)
class ModuleCallZScore:
    """A_i = (r_i - mean) / (std + eps) among the k-th calls of module m in a prompt's rollouts.

    Rewards are per call: its rollout's score, or the task's score for a call that couldn't be
    parsed. Calls that not every rollout of the group has get 0 (`aligned_calls` leaves them out
    of the batch as well). Columns as for `ModuleCalls`. mmGRPO, arXiv 2508.04660.

    Attributes:
        eps: Added to the deviation.
    """

    eps: float = 1e-4

    def __call__(self, advantages: Float[Tensor, "N T"], batch: Batch) -> Float[Tensor, "N T"]:
        """Advantages [N, T]."""
        calls = ModuleCalls.of(batch)
        score = group_z_score(batch.rewards, subgroups(calls.place, calls.unit), self.eps)
        return spread(torch.where(calls.aligned, score, 0.0), batch.mask)
