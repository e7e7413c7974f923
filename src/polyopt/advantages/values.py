"""Credit from a value function."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from polyopt.advantages.statistics import next_token, suffix_sum, whiten
from polyopt.batch import Batch
from polyopt.parts import part
from polyopt.rewards.dense import token_rewards


@part("advantages.estimator", needs={"values"}, provides={"returns"})
@dataclass(frozen=True)
class GeneralizedAdvantage:
    """A_t = sum_k (gamma lam)^k delta_{t+k}, delta_t = r_t + gamma V_{t+1} - V_t.

    "Next" is the next sampled token (tool output is skipped), and V beyond the last one is 0.
    Adds `returns` = A + V, the value head's targets. GAE, arXiv 1506.02438, eq. 16.

    Attributes:
        gamma: Discount per token.
        lam: 0 gives one-step errors, 1 returns less the value.
    """

    gamma: float = 1.0
    lam: float = 0.95

    def provide(self, batch: Batch) -> dict[str, Tensor]:
        """Targets of the value head, [N, T]."""
        values = batch["values"].masked_fill(~batch.mask, 0.0)
        rewards = token_rewards(batch).masked_fill(~batch.mask, 0.0)
        delta = rewards + self.gamma * next_token(values, batch.mask) - values
        return {"returns": suffix_sum(delta, batch.mask, self.gamma * self.lam) + values}

    def __call__(self, advantages: Float[Tensor, "N T"], batch: Batch) -> Float[Tensor, "N T"]:
        """Advantages [N, T]."""
        returns = batch["returns"] if "returns" in batch else self.provide(batch)["returns"]
        return (returns - batch["values"]).masked_fill(~batch.mask, 0.0)


@part("advantages.shaping")
@dataclass(frozen=True)
class Whiten:
    """(A - mean) / sqrt(var + eps) over all sampled tokens of the batch (PPO's normalisation)."""

    eps: float = 1e-8

    def __call__(self, advantages: Float[Tensor, "N T"], batch: Batch) -> Float[Tensor, "N T"]:
        """Advantages [N, T]."""
        return whiten(advantages, batch.mask, self.eps)
