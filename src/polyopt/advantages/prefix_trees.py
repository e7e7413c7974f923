"""The tree that a prompt's completions form by sharing prefixes, and credit where it branches."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from polyopt.batch import Batch
from polyopt.groups import group_deviation, group_z_score
from polyopt.parts import part

Advantages = Float[Tensor, "N T"]


@dataclass(frozen=True)
class PrefixTree:
    """The distinct prefixes of the completions of each prompt. A prefix is a node.

    Two rows share a node if they have the same group, prompt tokens and first t completion tokens
    (tool output included: it is part of what the next token depends on). Exact, by sorting rows:
    no hash that could collide.

    Attributes:
        node: Node reached after t tokens of each row. [N, T + 1]
        inside: Whether the row has t tokens. [N, T + 1]
        size: Number of nodes.
    """

    node: Int[Tensor, "N T1"]
    inside: Bool[Tensor, "N T1"]
    size: int

    @classmethod
    def of(cls, batch: Batch) -> PrefixTree:
        """The tree of a batch.

        In sorted order a prefix is new at depth t if the row differs from the one above it in any
        of its first t tokens, and nodes of a depth are counted by the new ones so far.
        """
        tokens, lengths = batch["tokens"], batch["lengths"][:, None]
        depth = torch.arange(batch.width + 1, device=tokens.device)
        inside = depth <= lengths
        rows = torch.cat([_root(batch)[:, None], tokens.masked_fill(~inside[:, 1:], -1)], dim=1)
        ordered, place = torch.unique(rows, dim=0, return_inverse=True)
        differs = torch.ones_like(ordered, dtype=torch.bool)
        differs[1:] = (ordered[1:] != ordered[:-1]).cumsum(1) > 0
        before = differs.sum(0).cumsum(0) - differs.sum(0)
        node = (differs.cumsum(0) - 1 + before)[place.reshape(-1)]
        return cls(node, inside, int(differs.sum()))

    @property
    def entered(self) -> Int[Tensor, "N T"]:
        """Node that each token leads to."""
        return self.node[:, 1:]

    @property
    def left(self) -> Int[Tensor, "N T"]:
        """Node that each token starts from."""
        return self.node[:, :-1]

    @property
    def token(self) -> Bool[Tensor, "N T"]:
        """Where the completions have tokens."""
        return self.inside[:, 1:]

    def count(self) -> Int[Tensor, "N T1"]:
        """Rows that begin with each row's first t tokens; 0 beyond its end."""
        sizes = torch.bincount(self.node[self.inside], minlength=self.size)
        return sizes[self.node] * self.inside

    def mean(
        self, values: Float[Tensor, " N"], among: Bool[Tensor, "N T1"] | None = None
    ) -> Float[Tensor, "N T1"]:
        """V: mean over the rows that begin with each row's first t tokens; 0 beyond its end.

        Args:
            values: A value per row.
            among: Which rows count at which depth; all that have t tokens by default.
        """
        counted = self.inside if among is None else among
        spread = values[:, None].expand(self.node.shape)[counted]
        total = values.new_zeros(self.size).index_add(0, self.node[counted], spread)
        sizes = torch.bincount(self.node[counted], minlength=self.size).clamp(min=1)
        return (total / sizes)[self.node] * self.inside

    def branching(self) -> Bool[Tensor, "N T"]:
        """Tokens before which the tree has at least two ways on."""
        parent = self.node.new_full((self.size,), self.size)
        parent[self.entered[self.token]] = self.left[self.token]
        ways = torch.bincount(parent, minlength=self.size + 1)
        return (ways[self.left] > 1) & self.token


def _root(batch: Batch) -> Int[Tensor, " N"]:
    """Rows counted by group and prompt tokens."""
    group = batch.group_index[:, None]
    if "prompt_tokens" in batch:
        tokens = batch["prompt_tokens"]
        place = torch.arange(tokens.shape[1], device=tokens.device)
        tokens = tokens.masked_fill(place >= batch["prompt_lengths"][:, None], -1)
        group = torch.cat([group, tokens], dim=1)
    index: Tensor = torch.unique(group, dim=0, return_inverse=True)[1]
    return index.reshape(-1)


@part("advantages.shaping", needs={"tokens", "lengths"})
@dataclass(frozen=True)
class BranchCredit:
    """A_t += V(s_{t+1}) - V(s_t), V(s) the mean z-scored reward of the completions starting with s.

    Not 0 only where siblings part; over a completion it adds up to the z-score of the reward, if
    no completion is the beginning of another. With the z-score itself below it (the estimator's)
    this is TEMPO, arXiv 2509.18314: A_t = (r - mean + V(s_{t+1}) - V(s_t)) / (std + eps).

    Attributes:
        eps: Added to the deviation of the group's rewards.
    """

    eps: float = 1e-6

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        score = group_z_score(batch.rewards, batch.group_index, self.eps)
        values = PrefixTree.of(batch).mean(score)
        return advantages + (values[:, 1:] - values[:, :-1]).masked_fill(~batch.mask, 0.0)


@part(
    "advantages.estimator",
    needs={"tokens", "lengths"},
    min_rollouts=2,
    claims={"zero-on-equal-rewards"},
)
def next_token_gain(advantages: Advantages, batch: Batch) -> Advantages:
    """A(v | p) = mean reward with prefix p and next token v, less that of all that go on after p.

    0 where all completions that share the prefix go on alike. T-SPMO, arXiv 2504.20834.
    """
    tree = PrefixTree.of(batch)
    reward = group_deviation(batch.rewards, batch.group_index)
    goes_on = torch.nn.functional.pad(tree.token, (0, 1))
    gain = tree.mean(reward)[:, 1:] - tree.mean(reward, among=goes_on)[:, :-1]
    return torch.where(tree.branching(), gain, 0.0).masked_fill(~batch.mask, 0.0)
