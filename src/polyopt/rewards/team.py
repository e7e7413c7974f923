"""Rewards of teams: what the team achieved, mixed with what an agent did."""

from __future__ import annotations

from dataclasses import dataclass

from polyopt.batch import Batch
from polyopt.parts import part
from polyopt.rewards.dense import last_token


@part("rewards.shaping", needs={"team_reward"})
@dataclass(frozen=True)
class TeamReward:
    """r = alpha * r_team + r_local, where the batch's own reward is the agent's local one.

    Column `team_reward` [N]: what the whole team achieved in the row's environment.
    AT-GRPO, arXiv 2510.11062; the paper's alpha depends on the task.

    Attributes:
        alpha: Weight of the team's reward.
    """

    alpha: float = 1.0

    def __call__(self, batch: Batch) -> Batch:
        """The batch with mixed rewards; dense ones get the team's share at the last token."""
        share = self.alpha * batch["team_reward"].to(batch.rewards.dtype)
        mixed = batch.replace(rewards=batch.rewards + share)
        if "token_rewards" not in batch:
            return mixed
        return mixed.replace(
            token_rewards=batch["token_rewards"] + share[:, None] * last_token(batch.mask)
        )
