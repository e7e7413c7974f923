"""Credit for the steps that an agent takes in an environment, compared where states coincide."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from polyopt.advantages.scopes import pair_index
from polyopt.advantages.statistics import suffix_sum
from polyopt.batch import Batch
from polyopt.groups import (
    group_count,
    group_deviation,
    group_mean,
    group_size,
    group_start,
    group_std,
    subgroups,
)
from polyopt.parts import part
from polyopt.rewards.dense import token_rewards

Advantages = Float[Tensor, "N T"]


@dataclass(frozen=True)
class Steps:
    """The K steps of a batch, ordered by rollout and then by time.

    Read from the column `step` [N, T]: number of the environment step to which each sampled token
    belongs, rising within a rollout. So a rollout may be one row with many steps, or a row per
    step, or anything between.

    Attributes:
        of_token: Step of each sampled token; 0 elsewhere. [N, T]
        token: One sampled token of each step, as a flat index into [N, T]. [K]
        group: Group of each step, counted from 0. [K]
        rollout: Rollout of each step, counted from 0. [K]
        mask: The batch's mask. [N, T]
    """

    of_token: Int[Tensor, "N T"]
    token: Int[Tensor, " K"]
    group: Int[Tensor, " K"]
    rollout: Int[Tensor, " K"]
    mask: Bool[Tensor, "N T"]

    @classmethod
    def of(cls, batch: Batch) -> Steps:
        """The steps of a batch."""
        mask = batch.mask
        flat = mask.flatten().nonzero().flatten()
        row = flat // max(batch.width, 1)
        step = pair_index(batch.rollout[row], batch["step"].flatten()[flat])
        token = flat.new_full((group_size(step),), mask.numel())
        token = token.scatter_reduce(0, step, flat, "amin")
        of_token = torch.zeros_like(mask, dtype=torch.long).masked_scatter(mask, step)
        rows = token // max(batch.width, 1)
        whose = torch.unique(batch.rollout[rows], return_inverse=True)[1]
        return cls(of_token, token, batch.group_index[rows], whose, mask)

    def read(self, column: Tensor) -> Tensor:
        """A column [N, T] or [N] at each step. [K]"""
        if column.dim() == 1:
            return column[self.token // max(self.mask.shape[1], 1)]
        return column.flatten()[self.token]

    def sum(self, values: Float[Tensor, "N T"]) -> Float[Tensor, " K"]:
        """Sum over each step's tokens."""
        total = values.new_zeros(len(self.token))
        return total.index_add(0, self.of_token[self.mask], values[self.mask])

    def mean(self, values: Float[Tensor, "N T"]) -> Float[Tensor, " K"]:
        """Mean over each step's tokens."""
        return self.sum(values) / self.sum(torch.ones_like(values))

    def spread(self, values: Float[Tensor, " K"]) -> Float[Tensor, "N T"]:
        """A value per step, written to its tokens."""
        tokens = values[self.of_token[self.mask]]
        return values.new_zeros(self.mask.shape).masked_scatter(self.mask, tokens)

    def returns(self, rewards: Float[Tensor, " K"], gamma: float) -> Float[Tensor, " K"]:
        """R_k = r_k + gamma R_{k+1} along each rollout."""
        place = torch.arange(len(rewards), device=rewards.device) - group_start(self.rollout)
        shape = (group_size(self.rollout), int(place.max()) + 1 if len(place) else 0)
        table = rewards.new_zeros(shape).index_put((self.rollout, place), rewards)
        there = torch.zeros(shape, dtype=torch.bool, device=rewards.device)
        there = there.index_put((self.rollout, place), there.new_ones(len(place)))
        return suffix_sum(table, there, gamma)[self.rollout, place]

    def before(self, ids: Int[Tensor, " K"], count: int) -> Int[Tensor, "K count"]:
        """Ids of the `count` steps before each step, nearest first; -1 before the rollout's start.

        Ids are counted from 0.
        """
        back = torch.arange(1, count + 1, device=ids.device)
        place = torch.arange(len(ids), device=ids.device)[:, None] - back
        there = place >= group_start(self.rollout)[:, None]
        return torch.where(there, ids[place.clamp(min=0)], -1)


def scaled_deviation(
    values: Float[Tensor, " K"], index: Int[Tensor, " K"], power: float, eps: float, lone: float
) -> Float[Tensor, " K"]:
    """(x - mean) / (std + eps)^power, std with n - 1; alone, lone * x / (1 + eps)^power."""
    alone = group_count(index, values) == 1
    scale = (group_std(values, index) + eps) ** power
    score = group_deviation(values, index) / scale
    return torch.where(alone, lone * values / (1 + eps) ** power, score)


@part("advantages.estimator", needs={"step"}, min_rollouts=2, claims={"zero-on-equal-rewards"})
@dataclass(frozen=True)
class EpisodeByStep:
    """A = R less the mean of R over all steps of the prompt's rollouts: long rollouts weigh more.

    As the code of GiGPO computes its episode part; its paper (arXiv 2505.10978) averages over
    rollouts, which is `group_mean_baseline` (or `GroupZScore`). Column `step` as for `Steps`.

    Attributes:
        power: Power of the deviation that A is divided by: 0 for none, 1 for a z-score.
        eps: Added to the deviation.
        lone: Share of its reward that the only step of a prompt gets (1 in the authors' code).
    """

    power: float = 0.0
    eps: float = 1e-6
    lone: float = 0.0

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        steps = Steps.of(batch)
        numbers = (self.power, self.eps, self.lone)
        return steps.spread(scaled_deviation(steps.read(batch.rewards), steps.group, *numbers))


@part("advantages.shaping", needs={"step", "state"}, min_rollouts=2)
@dataclass(frozen=True)
class AnchorStates:
    """A += weight * (R_k less its mean over the steps taken from the same state).

    R_k is the discounted return of the rewards from step k on (`token_rewards` summed over each
    step; without that column, the outcome at the end). Steps of one prompt that start from equal
    states are a group; a step alone in its state gets nothing.

    Columns [N, T]: `step` as for `Steps`; `state`, id of the state in which the token's step began
    (equal ids are equal states: canonicalise them first). GiGPO, arXiv 2505.10978.

    Attributes:
        weight: Weight of the step part (omega).
        gamma: Discount per step.
        power: Power of the deviation that it is divided by: 0 for none, 1 for a z-score.
        eps: Added to the deviation.
    """

    weight: float = 1.0
    gamma: float = 0.95
    power: float = 0.0
    eps: float = 1e-6

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        return advantages + self.weight * self.step_credit(batch)

    def step_credit(self, batch: Batch) -> Float[Tensor, "N T"]:
        """The step part without its weight."""
        steps = Steps.of(batch)
        anchors = subgroups(steps.read(batch["state"]), steps.group)
        returns = self.returns(batch, steps)
        return steps.spread(scaled_deviation(returns, anchors, self.power, self.eps, lone=0.0))

    def returns(self, batch: Batch, steps: Steps) -> Float[Tensor, " K"]:
        """R_k of each step."""
        return steps.returns(steps.sum(token_rewards(batch)), self.gamma)


@part("advantages.shaping", needs={"step", "state", "action", "next_state"})
@dataclass(frozen=True)
class SharedSteps:
    """A step's credit becomes its mean over all rollouts of the prompt that took the same step.

    Steps are the same if state, action, next state and the `history` states before agree; near the
    start, where there are fewer, those that there are. What good and bad rollouts share ends near
    the group's mean, what sets them apart keeps its credit. A rollout that takes a step twice
    counts twice.

    Columns [N, T]: `step` as for `Steps`; ids `state` before the token's step, `action` and
    `next_state` after it (equal ids are equal). SALT, arXiv 2510.20022 (merge rule reconstructed
    from the abstract; the paper's history length isn't stated in the sources at hand).

    Attributes:
        history: Earlier states that must agree too.
    """

    history: int = 0

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        steps = Steps.of(batch)
        credit = steps.mean(advantages)
        return steps.spread(group_mean(credit, self.edges(batch, steps)))

    def edges(self, batch: Batch, steps: Steps) -> Int[Tensor, " K"]:
        """Edge of the merged graph that each step is, counted from 0."""
        state = torch.unique(steps.read(batch["state"]), return_inverse=True)[1]
        edge = subgroups(state, steps.group)
        for name in ("action", "next_state"):
            edge = subgroups(steps.read(batch[name]), edge)
        for earlier in steps.before(state, self.history).unbind(1):  # a few columns
            edge = subgroups(earlier, edge)
        return edge
