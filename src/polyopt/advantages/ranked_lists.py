"""Credit for the items of a list, rank by rank."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from polyopt.batch import Batch
from polyopt.groups import group_z_score
from polyopt.parts import part
from polyopt.rewards.dense import last_token
from polyopt.rollout_table import RolloutTable


def rank_advantages(
    rewards: Float[Tensor, "R K"], group: Int[Tensor, " R"], eps: float
) -> Float[Tensor, "R K"]:
    """z-score of each rank's reward within its group, deviation with n - 1."""
    ranks = rewards.shape[1]
    index = group[:, None] * ranks + torch.arange(ranks, device=group.device)
    return group_z_score(rewards.flatten(), index.flatten(), eps).view_as(rewards)


@part("advantages.estimator", needs={"rank_rewards", "items", "truncated"}, min_rollouts=2)
@dataclass(frozen=True)
class RankZScore:
    """Token t of item k gets (R_k - mean_g R_k) / (std_g R_k + eps), its rank's own z-score.

    `rank_rewards` [N, K] are rewards per rank, `items` [N, T] the item of each token (from 0, -1
    for none; a line break belongs to the item it ends). Items beyond the K-th get `overflow`, the
    stop token gets 0. "Rank-GRPO: Training LLM-based Conversational Recommender Systems with
    Reinforcement Learning", arXiv 2510.20150.

    Attributes:
        eps: Added to the deviation.
        overflow: Credit of tokens beyond the K-th item.
    """

    eps: float = 1e-4
    overflow: float = -0.1

    def __call__(self, advantages: Float[Tensor, "N T"], batch: Batch) -> Float[Tensor, "N T"]:
        """Advantages [N, T]."""
        table, items = RolloutTable.of(batch), batch["items"].long()
        rewards = table.column(batch["rank_rewards"]).to(table.rewards.dtype)
        credit = table.rows(rank_advantages(rewards, table.group, self.eps))
        ranks = credit.shape[1]
        written = credit.gather(1, items.clamp(0, ranks - 1))
        written = torch.where(items >= ranks, self.overflow, written)
        stop = last_token(batch.mask) & ~batch["truncated"].bool()[:, None]
        return written.masked_fill((items < 0) | stop | ~batch.mask, 0.0)
