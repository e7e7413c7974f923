"""Trees whose nodes are segments: a row is one node, its siblings are the group it competes in."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from polyopt.advantages.statistics import spread
from polyopt.batch import Batch
from polyopt.groups import (
    group_deviation,
    group_mean,
    group_std,
    per_group,
    subgroups,
)
from polyopt.parts import part

Advantages = Float[Tensor, "N T"]


@dataclass(frozen=True)
class SegmentTree:
    """The segment trees of a batch.

    Each row holds one segment; shared beginnings are rows of their own and train once. Columns [N]:
    `node`, the segment's id within its prompt; `parent`, the id of the segment before it, which
    need not be in the batch (any such id stands for the prompt). The reward counts at leaves only;
    give inner rows any number, since rows without a reward are left out.

    Attributes:
        node: Node of each row, counted from 0. [N]
        above: Node before each node, -1 where it isn't in the batch. [K]
        siblings: Index of the pairs (group, parent id). [N]
    """

    node: Int[Tensor, " N"]
    above: Int[Tensor, " K"]
    siblings: Int[Tensor, " N"]

    @classmethod
    def of(cls, batch: Batch) -> SegmentTree:
        """The trees of a batch."""
        group, own, parent = batch.group_index, batch["node"].long(), batch["parent"].long()
        both = subgroups(torch.cat([own, parent]), torch.cat([group, group]))
        node, names = torch.unique(both[: len(own)], return_inverse=True)
        above = both[len(own) :]
        found = torch.isin(above, node)
        place = torch.searchsorted(node, above).clamp(max=max(len(node) - 1, 0))
        up = torch.full_like(node, -1).scatter(0, names, torch.where(found, place, -1))
        return cls(names, up, subgroups(parent, group))

    def values(self, rewards: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
        """V of each row's node: its reward at a leaf, else the mean of its children's V."""
        value = per_group(group_mean(rewards, self.node), self.node)
        child = self.above >= 0
        children = torch.bincount(self.above[child], minlength=len(value))
        for _ in range(self._depth()):  # a level at a time: levels are few, nodes many
            total = torch.zeros_like(value).index_add(0, self.above[child], value[child])
            value = torch.where(children > 0, total / children.clamp(min=1), value)
        return value[self.node]

    def _depth(self) -> int:
        """Edges on the longest way from a leaf up."""
        depth, at = 0, self.above
        while (at >= 0).any():
            at = torch.where(at >= 0, self.above[at], -1)
            depth += 1
            if depth > len(self.above):
                raise ValueError("the columns node and parent form a cycle: no tree has one")
        return depth


def sibling_deviation(batch: Batch) -> tuple[Float[Tensor, " N"], SegmentTree]:
    """V less the siblings' mean V, which is the parent's V; exactly 0 where rewards are equal."""
    tree = SegmentTree.of(batch)
    values = tree.values(group_deviation(batch.rewards, batch.group_index))
    return group_deviation(values, tree.siblings), tree


@part("advantages.estimator", needs={"node", "parent"}, claims={"zero-on-equal-rewards"})
def sibling_baseline(advantages: Advantages, batch: Batch) -> Advantages:
    """A(segment) = V(segment) - V(parent), V the mean over what was sampled from there on.

    Columns as for `SegmentTree`. The "rloo" form of SPO-tree, arXiv 2505.23564.
    """
    return spread(sibling_deviation(batch)[0], batch.mask)


@part("advantages.estimator", needs={"node", "parent"}, claims={"zero-on-equal-rewards"})
@dataclass(frozen=True)
class SiblingZScore:
    """A(segment) = (V - mean of the siblings' V) / (their population deviation + eps).

    Columns as for `SegmentTree`. Two papers, one rule: TreeRPO, arXiv 2506.05183 (eps ours), and
    the "grpo" form of SPO-tree, arXiv 2505.23564 (eps 1e-8).

    Attributes:
        eps: Added to the deviation.
    """

    eps: float = 1e-6

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        deviation, tree = sibling_deviation(batch)
        scale = group_std(deviation, tree.siblings, ddof=0) + self.eps
        return spread(deviation / scale, batch.mask)


@part("advantages.estimator", needs={"node", "parent"}, claims={"zero-on-equal-rewards"})
@dataclass(frozen=True)
class SiblingBernoulliScore:
    """A(segment) = (V - mu) / (sqrt(mu (1 - mu)) + eps), mu the siblings' mean V.

    The deviation that a 0/1 reward of mean mu would have: another reading of TreeRPO's normaliser,
    arXiv 2506.05183, for rewards in [0, 1] (outside, the root is taken as 0). Columns as for
    `SegmentTree`.

    Attributes:
        eps: Added to the deviation.
    """

    eps: float = 1e-6

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        deviation, tree = sibling_deviation(batch)
        mean = group_mean(tree.values(batch.rewards), tree.siblings)
        scale = (mean * (1 - mean)).clamp(min=0.0).sqrt() + self.eps
        return spread(deviation / scale, batch.mask)
