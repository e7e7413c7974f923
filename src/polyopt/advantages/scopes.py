"""Credit inside scopes narrower than a prompt: its trees, its variants, its agents and turns.

A scope is the rows of one prompt visit that agree in some further ids. What is computed for a
group can be computed for a scope, and the two can be added up.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from polyopt.advantages.statistics import spread
from polyopt.batch import Batch
from polyopt.groups import group_count, group_size, group_z_score, subgroups
from polyopt.parts import part
from polyopt.rollout_table import RolloutTable

Advantages = Float[Tensor, "N T"]


def pair_index(first: Int[Tensor, " F"], second: Int[Tensor, " F"]) -> Int[Tensor, " F"]:
    """Entries counted by the pair of their ids, from 0.

    `subgroups` for as many entries as there are tokens: sorts numbers, not rows.
    """
    major, minor = (torch.unique(ids.long(), return_inverse=True)[1] for ids in (first, second))
    pair = major * (group_size(minor) or 1) + minor
    index: Tensor = torch.unique(pair, return_inverse=True)[1]
    return index


def scope_index(batch: Batch, *names: str) -> Int[Tensor, " N"]:
    """Rows counted by the tuple (group, column, column, ...), from 0."""
    index = batch.group_index
    for name in names:
        index = subgroups(batch[name], index)
    return index


def scope_score(
    values: Float[Tensor, " N"], index: Int[Tensor, " N"], eps: float, lone: float
) -> Float[Tensor, " N"]:
    """(x - mean) / (std + eps) within each scope, std with n - 1; lone * x / (1 + eps) if alone."""
    alone = group_count(index, values) == 1
    return torch.where(alone, lone * values / (1 + eps), group_z_score(values, index, eps))


def tree_score(values: Float[Tensor, " R"], batch: Batch, eps: float, lone: float) -> Advantages:
    """Z-score of a value per rollout among the rollouts of its tree, on every sampled token."""
    table = RolloutTable.of(batch)
    index = subgroups(table.column(batch["tree"]), table.group)
    return table.spread(scope_score(values, index, eps, lone))


@part("advantages.estimator", needs={"tree"}, min_rollouts=2, claims={"zero-on-equal-rewards"})
@dataclass(frozen=True)
class TreeZScore:
    """A_i = (R_i - mean_tree) / (std_tree + eps): each tree is a group of its own.

    Column `tree` [N]: id of the search tree, within its prompt, in which the row's trajectory is a
    path from the root to a leaf. The mode "tree_inner" of the authors' code.
    Tree-GRPO, arXiv 2509.21240.

    Attributes:
        eps: Added to the deviation.
        lone: Share of its reward that the only path of a tree gets (1 in the authors' code).
    """

    eps: float = 1e-6
    lone: float = 0.0

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        return tree_score(RolloutTable.of(batch).rewards, batch, self.eps, self.lone)


@part("advantages.shaping", needs={"tree"})
@dataclass(frozen=True)
class IntraTree:
    """A_i += (R_i - mean_tree) / (std_tree + eps), on top of a comparison across trees.

    Column `tree` as for `TreeZScore`. Tree-GRPO, arXiv 2509.21240: intra-tree plus inter-tree.

    Attributes:
        eps: Added to the deviation.
        lone: Share of its reward that the only path of a tree gets (1 in the authors' code).
    """

    eps: float = 1e-6
    lone: float = 0.0

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        rewards = RolloutTable.of(batch).rewards
        return advantages + tree_score(rewards, batch, self.eps, self.lone)


@part("advantages.shaping", needs={"tree"})
@dataclass(frozen=True)
class RescoreByTree:
    """A_i becomes its own z-score among the paths of its tree, A_i the rollout's mean credit.

    Column `tree` as for `TreeZScore`. After a z-score over the prompt this is the mode
    "tree_2norm" of Tree-GRPO's code (arXiv 2509.21240).

    Attributes:
        eps: Added to the deviation.
        lone: Share of its advantage that the only path of a tree keeps (1 in the authors' code).
    """

    eps: float = 1e-6
    lone: float = 0.0

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        mean = RolloutTable.of(batch).token_mean(advantages)
        return tree_score(mean, batch, self.eps, self.lone)


@part("advantages.shaping", needs={"variant", "own_variant"})
@dataclass(frozen=True)
class OwnVariant:
    """A_i += (R_i - mean_v) / (std_v + eps) on rows trained under the variant they came from.

    A question is asked in several equivalent variants, and every response trains under all of
    them: one row, with a rollout id of its own, for each pair. The group is the question. The mean
    and deviation are those of the variant's own responses; rows under a foreign variant keep what
    they have.

    Columns [N]: `variant`, the variant that the row's prompt is; `own_variant`, 1 where the
    response was sampled from that prompt. Share-GRPO, arXiv 2505.16673.

    Attributes:
        eps: Added to the deviation.
        lone: Share of its reward that a variant's only response gets.
    """

    eps: float = 1e-6
    lone: float = 0.0

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        own = batch["own_variant"].bool()
        index = scope_index(batch.select(own), "variant")
        score = torch.zeros_like(batch.rewards)
        score[own] = scope_score(batch.rewards[own], index, self.eps, self.lone)
        return advantages + spread(score, batch.mask)


@part(
    "advantages.estimator",
    needs={"turn", "agent"},
    min_rollouts=2,
    claims={"zero-on-equal-rewards"},
)
@dataclass(frozen=True)
class AgentTurnZScore:
    """A_i = (r_i - mean) / (std + eps) among the actions of one agent at one turn of one prompt.

    A row is one action, so an environment run has many, and rewards differ between them.
    Columns [N]: `turn`, the turn of the environment run at which the row was sampled; `agent`, who
    sampled it. AT-GRPO, arXiv 2510.11062.

    Attributes:
        eps: Added to the deviation.
        lone: Share of its reward that an action without peers gets (1 in the authors' code).
    """

    eps: float = 1e-6
    lone: float = 0.0

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        index = scope_index(batch, "turn", "agent")
        return spread(scope_score(batch.rewards, index, self.eps, self.lone), batch.mask)
