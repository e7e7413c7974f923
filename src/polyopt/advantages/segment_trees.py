"""Trees whose nodes are segments of completions: a segment competes with its siblings."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from polyopt.advantages.scopes import pair_index
from polyopt.batch import Batch
from polyopt.groups import group_deviation, group_mean, group_std, subgroups
from polyopt.parts import part

Advantages = Float[Tensor, "N T"]


@dataclass(frozen=True)
class SegmentTree:
    """The K segments of a batch, and which of them follow which.

    Read from the column `segment` [N, T]: id, within its prompt, of the segment that each sampled
    token belongs to. A row is a way from the prompt to a leaf; rows that share a beginning share
    its segments. What a row's segments follow is the same wherever they stand.

    Attributes:
        of_token: Segment of each sampled token, counted from 0. [F]
        above: Segment before each segment, -1 for the prompt. [K]
        siblings: Index of the segments that follow the same one, or begin the same prompt. [K]
        leaf: Last segment of each row that has one. [M]
        row: That row. [M]
        mask: The batch's mask, with F tokens. [N, T]
    """

    of_token: Int[Tensor, " F"]
    above: Int[Tensor, " K"]
    siblings: Int[Tensor, " K"]
    leaf: Int[Tensor, " M"]
    row: Int[Tensor, " M"]
    mask: Bool[Tensor, "N T"]

    @classmethod
    def of(cls, batch: Batch) -> SegmentTree:
        """The trees of a batch."""
        row = batch.mask.nonzero()[:, 0]
        group = batch.group_index[row]
        node = pair_index(group, batch["segment"][batch.mask])
        size = int(node.max()) + 1 if len(node) else 0
        first, last = torch.ones_like(row, dtype=torch.bool), torch.ones_like(row, dtype=torch.bool)
        first[1:] = row[1:] != row[:-1]
        last[:-1] = first[1:]
        before = torch.where(first, -1, node.roll(1))
        begins = before != node
        above = node.new_full((size,), -1).index_copy(0, node[begins], before[begins])
        prompt = group.new_zeros(size).index_copy(0, node, group)
        return cls(node, above, subgroups(above, prompt), node[last], row[last], batch.mask)

    def values(self, rewards: Float[Tensor, " N"]) -> Float[Tensor, " K"]:
        """V: at a leaf its rows' mean reward, elsewhere the mean of the following segments' V."""
        value = rewards.new_zeros(len(self.above))
        rows = torch.bincount(self.leaf, minlength=len(value)).clamp(min=1)
        value = value.index_add(0, self.leaf, rewards[self.row]) / rows
        child = self.above >= 0
        children = torch.bincount(self.above[child], minlength=len(value))
        for _ in range(self._depth()):  # a level at a time: levels are few, segments many
            total = torch.zeros_like(value).index_add(0, self.above[child], value[child])
            value = torch.where(children > 0, total / children.clamp(min=1), value)
        return value

    def deviation(self, batch: Batch) -> Float[Tensor, " K"]:
        """V less the siblings' mean V; exactly 0 where all rewards of a group are equal."""
        values = self.values(group_deviation(batch.rewards, batch.group_index))
        return group_deviation(values, self.siblings)

    def spread(self, values: Float[Tensor, " K"]) -> Float[Tensor, "N T"]:
        """A value per segment, written to its tokens in every row."""
        return values.new_zeros(self.mask.shape).masked_scatter(self.mask, values[self.of_token])

    def _depth(self) -> int:
        """Steps from the deepest segment up to the prompt."""
        depth, at = 0, self.above
        while (at >= 0).any():
            at = torch.where(at >= 0, self.above[at], -1)
            depth += 1
            if depth > len(self.above):
                raise ValueError(
                    "the column `segment` names a segment that follows itself: give every segment "
                    "of a prompt's tree an id of its own"
                )
        return depth


@part("advantages.estimator", needs={"segment"}, min_rollouts=2, claims={"zero-on-equal-rewards"})
def sibling_baseline(advantages: Advantages, batch: Batch) -> Advantages:
    """A(segment) = V(segment) - V(the one before), V the mean over what was sampled from there on.

    V before is the mean over the siblings, so an only child gets 0. Column `segment` as for
    `SegmentTree`. The "rloo" form of SPO-tree, arXiv 2505.23564.
    """
    tree = SegmentTree.of(batch)
    return tree.spread(tree.deviation(batch))


@part("advantages.estimator", needs={"segment"}, min_rollouts=2, claims={"zero-on-equal-rewards"})
@dataclass(frozen=True)
class SiblingZScore:
    """A(segment) = (V - mean of the siblings' V) / (their population deviation + eps).

    Column `segment` as for `SegmentTree`. Two papers, one rule: TreeRPO, arXiv 2506.05183 (eps
    ours), and the "grpo" form of SPO-tree, arXiv 2505.23564 (eps 1e-8).

    Attributes:
        eps: Added to the deviation.
    """

    eps: float = 1e-6

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        tree = SegmentTree.of(batch)
        deviation = tree.deviation(batch)
        scale = group_std(deviation, tree.siblings, ddof=0) + self.eps
        return tree.spread(deviation / scale)


@part("advantages.estimator", needs={"segment"}, min_rollouts=2, claims={"zero-on-equal-rewards"})
@dataclass(frozen=True)
class SiblingBernoulliScore:
    """A(segment) = (V - mu) / (sqrt(mu (1 - mu)) + eps), mu the siblings' mean V.

    The deviation that a 0/1 reward of mean mu would have: another reading of TreeRPO's normaliser,
    arXiv 2506.05183, for rewards in [0, 1] (beyond, the root is taken as 0). Column `segment` as
    for `SegmentTree`.

    Attributes:
        eps: Added to the deviation.
    """

    eps: float = 1e-6

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        tree = SegmentTree.of(batch)
        mean = group_mean(tree.values(batch.rewards), tree.siblings)
        scale = (mean * (1 - mean)).clamp(min=0.0).sqrt() + self.eps
        return tree.spread(tree.deviation(batch) / scale)
