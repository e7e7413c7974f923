"""Where a rollout forks, and which branch goes on: decisions of samplers that grow trees."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def fork_positions(
    entropy: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"], points: int
) -> Bool[Tensor, "N T"]:
    """The `points` sampled tokens of each rollout at which the policy was least certain.

    Of equal entropies the earlier counts first; a shorter rollout forks at all its tokens. ETMR,
    arXiv 2508.11356, forks at 3 points into 2 branches each.
    """
    order = entropy.masked_fill(~mask, -torch.inf).argsort(dim=1, descending=True, stable=True)
    ranks = torch.arange(order.shape[1], device=order.device).expand_as(order)
    return mask & (torch.empty_like(order).scatter(1, order, ranks) < points)


def forked_rollouts(trees: int, points: int, branches: int) -> int:
    """Leaves of the trees: M (1 + B N), each first response and B branches at each of N points."""
    return trees * (1 + branches * points)


def best_candidate(rewards: Float[Tensor, "turns K"]) -> Int[Tensor, " turns"]:
    """Which of K sampled actions the environment goes on with: the best, the first of equals.

    Greedy continuation of AT-GRPO, arXiv 2510.11062.
    """
    best = rewards.amax(dim=-1, keepdim=True)
    return (rewards == best).int().argmax(dim=-1)
