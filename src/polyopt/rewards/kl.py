"""KL penalties inside the reward: any estimate, with a fixed or an adaptive coefficient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Float
from torch import Tensor

from polyopt.batch import Batch
from polyopt.divergences import K1, Divergence
from polyopt.parts import part
from polyopt.rewards.dense import token_rewards


def sampled_divergence(batch: Batch, divergence: Divergence) -> Float[Tensor, "N T"]:
    """D(d) at each sampled token, d = logp - logp_ref under the policy before the update."""
    behaviour = batch["logp_old"] if "logp_old" in batch else batch["logp_sampler"]
    return divergence((behaviour - batch["logp_ref"]).masked_fill(~batch.mask, 0.0)) * batch.mask


def penalised(batch: Batch, penalty: Float[Tensor, "N T"]) -> Batch:
    """The batch with a penalty taken off its dense rewards, and off the totals."""
    dense = token_rewards(batch) - penalty
    return batch.replace(token_rewards=dense, rewards=batch.rewards - penalty.sum(1))


@part("rewards.shaping", needs={"logp_ref"})
@dataclass(frozen=True)
class DivergenceInReward:
    """r_t -= coefficient * D(d_t) at every sampled token, without a gradient.

    With `K1` it is `KLInReward`, the unbiased choice; verl offers the others too.

    Attributes:
        coefficient: Factor of the penalty.
        divergence: D.
    """

    coefficient: float = 0.01
    divergence: Divergence = field(default_factory=K1)

    def __call__(self, batch: Batch) -> Batch:
        """The batch with dense `token_rewards` and totals that include the penalty."""
        return penalised(batch, self.coefficient * sampled_divergence(batch, self.divergence))


@part("rewards.shaping", needs={"logp_ref"})
@dataclass
class AdaptiveKLInReward:
    """A penalty in the reward whose coefficient follows the KL divergence to a target.

    After each batch: coefficient *= 1 + clip(KL / target - 1, -0.2, 0.2) * rollouts / horizon, with
    KL the mean over rollouts of their tokens' mean D. Ziegler et al., arXiv 1909.08593,
    section 2.2; averages as in verl.

    Attributes:
        coefficient: First factor of the penalty.
        target: KL divergence that is aimed at, in nats per token.
        horizon: Rollouts over which the coefficient can change by a fifth.
        divergence: D.
        current: Factor now.
        measured: KL divergence of the last batch.
    """

    coefficient: float = 0.01
    target: float = 0.1
    horizon: float = 10000.0
    divergence: Divergence = field(default_factory=K1)
    current: float = field(init=False, repr=False)
    measured: float = field(default=0.0, init=False, repr=False)

    def __post_init__(self) -> None:
        self.current = self.coefficient

    def __call__(self, batch: Batch) -> Batch:
        """The batch with dense `token_rewards` and totals that include the penalty."""
        value = sampled_divergence(batch, self.divergence)
        shaped = penalised(batch, self.current * value)
        self.observe(value, batch)
        return shaped

    def observe(self, value: Float[Tensor, "N T"], batch: Batch) -> None:
        """Move the coefficient by what the divergence of a batch is."""
        if len(batch) == 0:
            return
        self.measured = float((value.sum(1) / (batch.mask.sum(1) + 1e-8)).mean())
        error = min(max(self.measured / self.target - 1, -0.2), 0.2)
        self.current *= 1 + error * len(batch) / self.horizon

    def state_dict(self) -> dict[str, Any]:
        """The coefficient as it is now."""
        return {"current": self.current, "measured": self.measured}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.current, self.measured = state["current"], state["measured"]
