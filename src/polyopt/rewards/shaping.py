"""Reward shaping: what is added to a task's reward before credit is assigned."""

from __future__ import annotations

from dataclasses import dataclass

from polyopt.batch import Batch
from polyopt.parts import part
from polyopt.rewards.dense import token_rewards


@part("rewards.shaping", needs={"lengths", "max_tokens"})
@dataclass(frozen=True)
class SoftOverlong:
    """r += min(-(length - (limit - B)) / B * factor, 0) with B = buffer * limit.

    Nothing up to limit - B, then linearly down to -factor at the completion limit. The paper's
    right and wrong answers are worth +1 and -1; with 0 and 1, factor 0.5 keeps its proportion.
    DAPO, arXiv 2503.14476, eq. 13.

    Attributes:
        buffer: Length of the slope as a share of the completion limit (paper: 4096 of 20480).
        factor: Penalty at the limit.
    """

    buffer: float = 0.2
    factor: float = 1.0

    def __call__(self, batch: Batch) -> Batch:
        """The batch with shaped rewards."""
        limit = batch["max_tokens"].to(batch.rewards.dtype)
        slope = self.buffer * limit
        over = batch["lengths"] - (limit - slope)
        penalty = (-over / slope * self.factor).clamp(max=0.0)
        return batch.replace(rewards=batch.rewards + penalty)


@part("rewards.shaping", needs={"logp_ref"})
@dataclass(frozen=True)
class KLInReward:
    """r_t -= coefficient * (logp_old - logp_ref) at every sampled token (k1, no gradient).

    The unbiased form for a penalty in the reward: the score function does the rest.
    Ziegler et al., arXiv 1909.08593, eq. 2.
    """

    coefficient: float = 0.01

    def __call__(self, batch: Batch) -> Batch:
        """The batch with dense `token_rewards` and totals that include the penalty."""
        behaviour = batch["logp_old"] if "logp_old" in batch else batch["logp_sampler"]
        kl = (behaviour - batch["logp_ref"]).masked_fill(~batch.mask, 0.0)
        dense = token_rewards(batch) - self.coefficient * kl
        total = batch.rewards - self.coefficient * kl.sum(1)
        return batch.replace(token_rewards=dense, rewards=total)
