"""Credit with a memory of each prompt: what its earlier visits gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from polyopt.batch import Batch
from polyopt.groups import (
    group_deviation,
    group_flat,
    group_mean,
    group_std,
    group_z_score,
    one_group,
)
from polyopt.parts import part
from polyopt.prompts.beliefs import PromptBeliefs
from polyopt.rollout_table import RolloutTable

Advantages = Float[Tensor, "N T"]
PerRollout = Float[Tensor, " R"]


def prompt_ids(batch: Batch, table: RolloutTable) -> list[str]:
    """Name of each rollout's prompt; the group stands for it where a batch has no prompts."""
    rows = table.first_row.tolist()
    if batch.prompts:
        return [batch.prompts[row].id for row in rows]
    return [f"group {batch.group[row]}" for row in rows]


@dataclass(frozen=True)
class Moments:
    """Visits, mean and deviation of rewards, per rollout of their prompts."""

    visits: PerRollout
    mean: PerRollout
    std: PerRollout

    def merged(self, mean: PerRollout, std: PerRollout) -> Moments:
        """With one more visit of equal weight:
        mean' = mean + (m - mean) / (n + 1),
        std'^2 = (n std^2 + s^2 + n / (n + 1) (m - mean)^2) / (n + 1).
        """
        n, total = self.visits, self.visits + 1
        variance = n * self.std.square() + std.square() + n / total * (mean - self.mean).square()
        return Moments(total, self.mean + (mean - self.mean) / total, (variance / total).sqrt())


@part("advantages.estimator", min_rollouts=2)
@dataclass
class SmoothStandardisation:
    """z-scores by this visit and by all visits, blended, and of two blends the smaller one.

    With n earlier visits and w = 1 / (n + 1): S1 = w A_tot + (1 - w) A_new and
    S2 = w A_new + (1 - w) A_tot; A = S1 if |S1| < |S2| else S2. A z-score over a deviation of 0 is
    0 (no eps). So a group of equal rewards still learns once its prompt has a history. Of several
    visits to a prompt in one step the last one joins the history.

    DCPO, "Dynamic Clipping Policy Optimization", arXiv 2509.02333.

    Attributes:
        history: Visits, mean and deviation (sample) of each prompt's rewards.
    """

    history: dict[str, tuple[float, float, float]] = field(
        default_factory=dict, init=False, repr=False
    )

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]; the visits join the history."""
        table = RolloutTable.of(batch)
        names = prompt_ids(batch, table)
        found = [self.history.get(name, (0.0, 0.0, 0.0)) for name in names]
        columns = torch.tensor(found, dtype=torch.float64).reshape(-1, 3).to(table.rewards)
        past = Moments(*columns.unbind(1))
        credit, after = self.step(table, past)
        moments = torch.stack([after.visits, after.mean, after.std], dim=1).tolist()
        for name, (visits, mean, std) in zip(names, moments, strict=True):
            self.history[name] = (visits, mean, std)
        return table.spread(credit)

    def step(self, table: RolloutTable, past: Moments) -> tuple[PerRollout, Moments]:
        """Credit of each rollout, and its prompt's moments with this visit."""
        deviation = group_deviation(table.rewards, table.group)
        flat = group_flat(table.rewards, table.group)
        mean = torch.where(flat, table.rewards, group_mean(table.rewards, table.group))
        std = group_std(table.rewards, table.group)
        after = past.merged(mean, std)
        new = _standardised(deviation, std)
        whole = _standardised(table.rewards - after.mean, after.std)
        w = 1 / (past.visits + 1)
        towards_new, towards_whole = w * whole + (1 - w) * new, w * new + (1 - w) * whole
        smaller = towards_new.abs() < towards_whole.abs()
        return torch.where(smaller, towards_new, towards_whole), after

    def state_dict(self) -> dict[str, Any]:
        """The history."""
        return {"history": self.history}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.history = {name: (m[0], m[1], m[2]) for name, m in state["history"].items()}


def _standardised(deviation: PerRollout, std: PerRollout) -> PerRollout:
    """deviation / std; 0 where std is 0."""
    return torch.where(std > 0, deviation / torch.where(std > 0, std, 1.0), 0.0)


@part("advantages.estimator", needs={"previous_drift"})
@dataclass
class SingleStreamBaseline:
    """A = z-score over the batch of r_i - v, v the prompt's tracked success rate before this visit.

    v = alpha / (alpha + beta) of a Beta belief, which then forgets and learns:
    alpha <- rho alpha + r, beta <- rho beta + 1 - r, rho = clip(2^(-D / half_life), least, most).
    D, the column `previous_drift` [N], is how far the policy has moved on the prompt's previous
    rollout (`rewards.policy_drift`), 0 at a first visit. `least = most` makes rho constant. No
    group is needed.

    SPO, "Single-stream Policy Optimization", arXiv 2509.13232. Its code measures D after the
    policy update; here it is measured before, on the policy that sampled the batch.

    Attributes:
        half_life: Drift in nats that halves a belief's weight.
        least: Least share of the belief that is kept.
        most: Largest share.
        eps: Added to the deviation (sample) over the batch.
        beliefs: alpha and beta of each prompt.
    """

    half_life: float = 0.06
    least: float = 0.875
    most: float = 0.96
    eps: float = 1e-8
    beliefs: PromptBeliefs = field(default_factory=PromptBeliefs, init=False, repr=False)

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]; the rewards join the beliefs."""
        table = RolloutTable.of(batch)
        names = prompt_ids(batch, table)
        values = torch.tensor(self.beliefs.values(names), dtype=torch.float64)
        error = table.rewards - values.to(table.rewards)
        kept = self.kept(table.column(batch["previous_drift"]))
        self.beliefs.learn(names, table.rewards.tolist(), kept.tolist())
        return table.spread(group_z_score(error, one_group(error), self.eps))

    def kept(self, distance: PerRollout) -> PerRollout:
        """rho: the share of a belief that is kept."""
        return torch.exp2(-distance / self.half_life).clamp(self.least, self.most)

    def state_dict(self) -> dict[str, Any]:
        """The beliefs."""
        return self.beliefs.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.beliefs.load_state_dict(state)
