"""Groups whose completions start from different prefixes of one search tree."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from polyopt.advantages.order_projection import OrderConstraints
from polyopt.advantages.statistics import spread
from polyopt.advantages.trajectories import success
from polyopt.batch import Batch
from polyopt.groups import group_deviation, subgroups
from polyopt.parts import part

Advantages = Float[Tensor, "N T"]


@dataclass(frozen=True)
class PrefixPaths:
    """Where in the teacher's tree each completion started.

    Read from the column `path` [N, D]: ids of the tree's nodes from the root down to the prefix
    that the row was given, then -1. Ids are unique within a prompt.

    Attributes:
        node: Node (counted within all groups from 0) of each step of the path. [E]
        row: Row that each step belongs to. [E]
        prefix: Node at which each row started. [N]
        above: Node before it; -1 where it is the root. [N]
    """

    node: Int[Tensor, " E"]
    row: Int[Tensor, " E"]
    prefix: Int[Tensor, " N"]
    above: Int[Tensor, " N"]

    @classmethod
    def of(cls, batch: Batch) -> PrefixPaths:
        """The paths of a batch; a row without any path starts at the prompt."""
        path = batch["path"].long()
        path = torch.cat([path.new_full((len(path), 1), -2), path], dim=1)
        on = (path != -1).long().cummin(1).values.bool()
        row = on.nonzero()[:, 0]
        node = subgroups(path[on], batch.group_index[row])
        named = path.new_full(path.shape, -1).masked_scatter(on, node)
        depth = on.sum(1, keepdim=True)
        above = named.gather(1, (depth - 2).clamp(min=0))[:, 0]
        prefix = named.gather(1, depth - 1)[:, 0]
        return cls(node, row, prefix, torch.where(depth[:, 0] > 1, above, -1))

    def mean_below(self, values: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
        """Mean over the group's rows that started at each row's prefix or below it."""
        sums, counts = (v.new_zeros(self.nodes) for v in (values, values))
        sums = sums.index_add(0, self.node, values[self.row])
        counts = counts.index_add(0, self.node, torch.ones_like(values)[self.row])
        return (sums / counts.clamp(min=1))[self.prefix]

    def max_below(self, values: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
        """Largest value among the group's rows that started at each row's prefix or below it."""
        none = values.new_full((self.nodes,), -torch.inf)
        return none.scatter_reduce(0, self.node, values[self.row], "amax")[self.prefix]

    @property
    def nodes(self) -> int:
        """Number of nodes on the paths."""
        return int(self.node.max()) + 1 if len(self.node) else 0


def staged(batch: Batch, value: Float[Tensor, " N"], alpha: float) -> Advantages:
    """r_i - alpha V(p_i), less its group mean, on every sampled token.

    The centring sums deviations, so that a group of equal rewards and values gets exactly 0.
    """
    index = batch.group_index
    centred = group_deviation(batch.rewards, index) - alpha * group_deviation(value, index)
    return spread(centred, batch.mask)


@dataclass(frozen=True)
class StagedBaseline(ABC):
    """What the heuristics share: they differ in the value V(p_i) of a rollout's prefix."""

    alpha: float = 0.5

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        return staged(batch, self.value(batch), self.alpha)

    @abstractmethod
    def value(self, batch: Batch) -> Float[Tensor, " N"]:
        """V(p_i)."""


@part("advantages.estimator", needs={"path"}, min_rollouts=2)
@dataclass(frozen=True)
class StagedExpectation(StagedBaseline):
    """A_i = a'_i - mean(a'), a'_i = r_i - alpha V(p_i), V(p) the mean reward from prefix p on.

    Completions count for every prefix on their way. Not divided by the deviation, which would mix
    the scales of the stages. Columns as for `PrefixPaths`.
    Tree-OPO, arXiv 2509.09284 (expectation heuristic; definitions from secondary descriptions).

    Attributes:
        alpha: Share of the prefix's value that is taken off.
    """

    def value(self, batch: Batch) -> Float[Tensor, " N"]:
        """V(p_i)."""
        return PrefixPaths.of(batch).mean_below(batch.rewards)


@part("advantages.estimator", needs={"path"}, min_rollouts=2, claims={"zero-on-equal-rewards"})
@dataclass(frozen=True)
class StagedOptimism(StagedBaseline):
    """`StagedExpectation` with V(p) the best reward from prefix p on: 1 if any succeeded.

    Tree-OPO, arXiv 2509.09284 (optimistic heuristic).

    Attributes:
        alpha: Share of the prefix's value that is taken off.
    """

    def value(self, batch: Batch) -> Float[Tensor, " N"]:
        """V(p_i)."""
        return PrefixPaths.of(batch).max_below(batch.rewards)


@part("advantages.estimator", needs={"path"}, min_rollouts=2, claims={"zero-on-equal-rewards"})
@dataclass(frozen=True)
class StagedPessimism(StagedBaseline):
    """`StagedExpectation` with V(p) the worst reward from prefix p on: 1 if none failed.

    Tree-OPO, arXiv 2509.09284 (pessimistic heuristic).

    Attributes:
        alpha: Share of the prefix's value that is taken off.
    """

    def value(self, batch: Batch) -> Float[Tensor, " N"]:
        """V(p_i)."""
        return -PrefixPaths.of(batch).max_below(-batch.rewards)


@part("advantages.estimator", needs={"path"}, min_rollouts=2, claims={"zero-on-equal-rewards"})
@dataclass(frozen=True)
class StagedProjection:
    """The advantages closest to r_i - mean(r) that respect the tree, |A|^2 <= n in a group of n.

    A_i + margin <= A_j where j succeeded one node below the prefix from which i failed, and where
    both failed from sibling prefixes of which only i's led to a success elsewhere in the group.
    The second rule is our reading of the sources at hand. SAE-soft of Tree-OPO, arXiv 2509.09284
    (the authors use SLSQP; the optimum is unique).

    Attributes:
        margin: delta, the least distance of an ordered pair.
    """

    margin: float = 0.0

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        index = batch.group_index
        low, high = self.ordered_pairs(batch)
        order = OrderConstraints(low, high, self.margin)
        target = group_deviation(batch.rewards, index)
        return spread(order.project_into_ball(target, index), batch.mask)

    def ordered_pairs(self, batch: Batch) -> tuple[Int[Tensor, " C"], Int[Tensor, " C"]]:
        """Rows (i, j) with A_i + margin <= A_j."""
        paths, won = PrefixPaths.of(batch), success(batch)
        hopeful = paths.max_below(won.to(batch.rewards.dtype)) > 0
        child = paths.prefix[:, None] == paths.above[None]
        sibling = (paths.above[:, None] == paths.above[None]) & (paths.above[:, None] >= 0)
        pair = (child & _first_and_second(~won, won)) | (
            sibling & _first_and_second(~won & hopeful, ~won & ~hopeful)
        )
        low, high = pair.nonzero().unbind(1)
        return low, high


def _first_and_second(first: Bool[Tensor, " N"], second: Bool[Tensor, " N"]) -> Bool[Tensor, "N N"]:
    return first[:, None] & second[None]
