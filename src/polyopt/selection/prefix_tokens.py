"""Which tokens of a prefix tree train, and what share of the loss a shared prefix has."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from polyopt.advantages.prefix_trees import PrefixTree
from polyopt.batch import Batch
from polyopt.parts import part


@part("selection.parts", needs={"tokens", "lengths"})
def first_of_each_branch(batch: Batch) -> Batch:
    """Only tokens at which completions part train, each (prefix, token) pair once.

    Of the rollouts that share a pair, the one with the lowest id trains it; the others' tokens
    leave the denominators. T-SPMO, arXiv 2504.20834.
    """
    tree = PrefixTree.of(batch)
    choice = tree.branching() & batch.loss_mask
    rollout = batch.rollout[:, None].expand_as(tree.entered)
    none = torch.iinfo(rollout.dtype).max
    owner = rollout.new_full((tree.size,), none)
    owner = owner.scatter_reduce(0, tree.entered[choice], rollout[choice], "amin")
    return batch.replace(loss_mask=choice & (owner[tree.entered] == rollout))


def prefix_share(batch: Batch) -> Float[Tensor, "N T"]:
    """1 / |lambda|, lambda(i, t) the completions of the group that share i's first t tokens."""
    count = PrefixTree.of(batch).count()[:, 1:].to(batch.rewards.dtype)
    return (1 / count.clamp(min=1)).masked_fill(count == 0, 0.0)


@part("selection.parts", needs={"tokens", "lengths"}, provides={"prefix_share"})
def share_prefixes(batch: Batch) -> Batch:
    """Adds the column `prefix_share` [N, T]: 1 / |lambda|, for `PerDistinctPrefix`.

    Counted over the whole rollout batch, so cutting it into optimizer batches doesn't change it.
    lambda-GRPO, arXiv 2509.21154.
    """
    return batch.replace(prefix_share=prefix_share(batch).masked_fill(~batch.mask, 0.0))
