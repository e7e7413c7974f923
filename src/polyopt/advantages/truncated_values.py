"""Credit from a value function for rollouts that aren't finished yet."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from polyopt.advantages.statistics import next_token, suffix_sum
from polyopt.batch import Batch
from polyopt.parts import part
from polyopt.rewards.dense import last_token, token_rewards


@part("advantages.estimator", needs={"values", "truncated"}, provides={"returns"})
@dataclass(frozen=True)
class ExtendedGAE:
    """GAE that bootstraps a cut-off rollout with its last value: V(s_l) := V(s_{l-1}).

    A_t = sum_k (gamma lam)^k delta_{t+k}, delta_t = r_t + gamma V_{t+1} - V_t, where V beyond the
    last token is 0 for a finished rollout and the last token's own for a truncated one (with gamma
    1 its last delta is then its reward). Adds `returns`, the discounted sum of rewards to come:
    targets for the value head on finished rollouts (`FinishedValueLoss`).

    T-PPO, arXiv 2506.15050 (EGAE; its lambda isn't in the sources at hand).

    Attributes:
        gamma: Discount per token.
        lam: 0 gives one-step errors, 1 returns less the value.
    """

    gamma: float = 1.0
    lam: float = 0.95

    def provide(self, batch: Batch) -> dict[str, Tensor]:
        """Discounted rewards to come, [N, T]."""
        return {"returns": suffix_sum(token_rewards(batch), batch.mask, self.gamma)}

    def __call__(self, advantages: Float[Tensor, "N T"], batch: Batch) -> Float[Tensor, "N T"]:
        """Advantages [N, T]."""
        values = batch["values"].masked_fill(~batch.mask, 0.0)
        rewards = token_rewards(batch).masked_fill(~batch.mask, 0.0)
        cut = last_token(batch.mask) & batch["truncated"].bool()[:, None]
        following = torch.where(cut, values, next_token(values, batch.mask))
        delta = rewards + self.gamma * following - values
        return suffix_sum(delta, batch.mask, self.gamma * self.lam)
