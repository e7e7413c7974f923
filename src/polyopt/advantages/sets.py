"""Sets of rollouts that are judged together, for success and for diversity."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from polyopt.batch import Batch
from polyopt.errors import RecipeError
from polyopt.groups import (
    group_count,
    group_deviation,
    group_mean,
    group_rank,
    group_sum,
    subgroups,
)
from polyopt.parts import part
from polyopt.rollout_table import RolloutTable

Advantages = Float[Tensor, "N T"]
PerMember = Float[Tensor, " M"]
Index = Int[Tensor, " M"]


def set_scores(returns: PerMember, signature: Index, index: Index) -> PerMember:
    """f of each member's set: mean return times distinct signatures per member.

    `index` counts the sets from 0; a trajectory in several sets has several members. Returns lie in
    [0, 1]. "Polychromic Objectives for Reinforcement Learning", arXiv 2509.25424.
    """
    once = 1 / group_count(subgroups(signature, index), returns)
    return group_mean(returns, index) * group_mean(once, index)


def member_mean(values: PerMember, trajectory: Index, count: int) -> Float[Tensor, " R"]:
    """Mean over the sets of each of `count` trajectories; 0 of one that is in none."""
    total = values.new_zeros(count).index_add(0, trajectory, values)
    sets = values.new_zeros(count).index_add(0, trajectory, torch.ones_like(values))
    return total / sets.clamp(min=1)


def set_advantages(scores: PerMember, index: Index, group: Index) -> PerMember:
    """f of each member's set less the mean of f over the sets of its group."""
    per_set = scores / group_count(index, scores)
    sets = group_sum(1 / group_count(index, scores), group)
    flat = group_deviation(scores, group) == 0
    return torch.where(flat, 0.0, scores - group_sum(per_set, group) / sets)


@part("advantages.estimator", needs={"answer_class"}, min_rollouts=2)
@dataclass(frozen=True)
class PolychromicSets:
    """A = f(S) - mean over the group's sets of f, f(S) = mean return times share of distinct ones.

    Each group is cut into sets of `size` in order of rollout id (what is left over gets 0), and all
    members of a set share its advantage, so a novel failure rises with its set. Distinctness goes
    by `answer_class`; rewards lie in [0, 1].

    "Polychromic Objectives for Reinforcement Learning", arXiv 2509.25424; how its sets are drawn
    isn't known to us.

    Attributes:
        size: n, rollouts per set.
    """

    size: int = 4

    def __post_init__(self) -> None:
        if self.size < 1:
            raise RecipeError(f"sets of {self.size} rollouts: the size must be at least 1.")

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        table = RolloutTable.of(batch)
        place = group_rank(torch.zeros_like(table.rewards), table.group)
        index = subgroups(place // self.size, table.group)
        whole = (group_count(index, table.rewards) == self.size).nonzero().flatten()
        index = torch.unique(index[whole], return_inverse=True)[1]
        signature = table.column(batch["answer_class"])[whole]
        scores = set_scores(table.rewards[whole], signature, index)
        credit = set_advantages(scores, index, table.group[whole])
        return table.spread(member_mean(credit, whole, len(table.rewards)))
