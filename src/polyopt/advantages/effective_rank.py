"""Exploration seen in hidden states: how many directions a completion's representations span."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from polyopt.batch import Batch
from polyopt.parts import part
from polyopt.rewards.dense import last_token
from polyopt.rollout_table import RolloutTable

EPS = 1e-8
MEASURES = ("effective_rank", "erv", "era")
"""Columns [N]: effective rank, its mean first difference and its mean second difference."""


def effective_rank(hidden: Float[Tensor, "T D"], first: Bool[Tensor, "J T"]) -> Float[Tensor, " J"]:
    """exp(-sum p log p) of J selections of tokens; p their centred singular values, summing to 1.

    0 for fewer than two tokens. Roy and Vetterli (2007).
    """
    count = first.sum(1, keepdim=True).clamp(min=1)
    chosen = first[:, :, None].to(hidden.dtype)
    mean = (hidden * chosen).sum(1, keepdim=True) / count[:, :, None]
    singular = torch.linalg.svdvals((hidden - mean) * chosen)
    p = singular / (singular.sum(1, keepdim=True) + EPS)
    rank = (-(p * (p + EPS).log()).sum(1)).exp()
    return torch.where(first.sum(1) < 2, 0.0, rank)


def rank_measures(
    hidden: Float[Tensor, "T D"], stride: int = 40, most: int = 512
) -> dict[str, Float[Tensor, ""]]:
    """Effective rank of a completion, its velocity (ERV) and its acceleration (ERA).

    m_j is the rank of the first j * stride + 1 tokens, d_j = m_j - mean(m_1..m_{j-1}) its step
    beyond its own past, e_j = d_j - d_{j-1}. ERV is the mean of d, ERA that of e; 0 where there are
    too few tokens. VERL, arXiv 2509.23808.

    Args:
        hidden: Last-layer hidden states of the completion's tokens.
        stride: Tokens from one prefix to the next.
        most: Only the last so many tokens are looked at.
    """
    hidden = hidden[-most:]
    place = torch.arange(len(hidden), device=hidden.device)
    ends = place[stride::stride]
    whole = torch.ones(1, len(hidden), dtype=torch.bool, device=hidden.device)
    ranks = effective_rank(hidden, torch.cat([whole, place[None] <= ends[:, None]]))
    prefixes = ranks[1:]
    past = prefixes.cumsum(0) / torch.arange(1, len(prefixes) + 1, device=hidden.device)
    velocity = prefixes[1:] - past[:-1]
    acceleration = velocity.diff()
    zero = hidden.new_zeros(())
    return {
        "effective_rank": ranks[0],
        "erv": velocity.mean() if len(velocity) else zero,
        "era": acceleration.mean() if len(acceleration) else zero,
    }


@part("advantages.shaping", needs=set(MEASURES))
@dataclass
class RankVelocity:
    """A += min(max(Phi, 0), |A| / kappa): a bonus for completions that explore, or settle, well.

    z_x = clip((x - mu_x) / |mu_x|, -limit, limit) for x in ER, ERV, ERA, mu_x a running mean;
    w = sigmoid(gain z_ERA); Phi = weight (w tanh(z_ER) + (1 - w) tanh(z_ERV)).

    So accelerating ranks reward exploration (rank), slowing ones exploitation (velocity). The bonus
    only ever raises an advantage, by at most its kappa-th part. Nothing is added before there is a
    running mean. Columns `effective_rank`, `erv`, `era` [N]: see `rank_measures`. VERL (Velocity-
    Exploiting Rank-Learning), arXiv 2509.23808; the authors' code adds the bonus at the last token
    only (`RankVelocityAtEnd`), the paper's formula to the whole response.

    Attributes:
        kappa: The bonus is at most |A| / kappa.
        gain: Steepness of the mixing weight.
        weight: Weight of the bonus.
        limit: Bound of the relative deviations.
        rate: Share of the newest batch in the running means.
        means: Running mean of each measure; empty before the first batch.
    """

    kappa: float = 2.0
    gain: float = 2.0
    weight: float = 1.0
    limit: float = 5.0
    rate: float = 0.3
    means: dict[str, float] = field(default_factory=dict, init=False, repr=False)

    def __call__(self, advantages: Float[Tensor, "N T"], batch: Batch) -> Float[Tensor, "N T"]:
        """Advantages [N, T]; moves the running means."""
        shaped = advantages
        if self.means:
            bonus = self.bonus(batch)[:, None].clamp(min=0.0)
            shaped = advantages + torch.minimum(bonus, advantages.abs() / self.kappa)
        self._follow(batch)
        return shaped

    def deviation(self, batch: Batch, name: str) -> Float[Tensor, " N"]:
        """z of one measure."""
        mean = self.means[name]
        relative = (batch[name] - mean) / (abs(mean) + EPS)
        return relative.clamp(-self.limit, self.limit)

    def exploration(self, batch: Batch) -> Float[Tensor, " N"]:
        """w."""
        return torch.sigmoid(self.gain * self.deviation(batch, "era"))

    def bonus(self, batch: Batch) -> Float[Tensor, " N"]:
        """Phi."""
        explore = self.exploration(batch)
        rank, velocity = (self.deviation(batch, n).tanh() for n in ("effective_rank", "erv"))
        return self.weight * (explore * rank + (1 - explore) * velocity)

    def _follow(self, batch: Batch) -> None:
        if not len(batch):
            return
        table = RolloutTable.of(batch)
        for name in MEASURES:
            new = float(table.column(batch[name]).mean())
            old = self.means.get(name, new)
            self.means[name] = (1 - self.rate) * old + self.rate * new

    def state_dict(self) -> dict[str, Any]:
        """The running means."""
        return {"means": dict(self.means)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.means = dict(state["means"])


@part("advantages.shaping", needs=set(MEASURES))
@dataclass
class RankVelocityAtEnd(RankVelocity):
    """`RankVelocity` on each row's last sampled token only, as in the authors' code."""

    def __call__(self, advantages: Float[Tensor, "N T"], batch: Batch) -> Float[Tensor, "N T"]:
        """Advantages [N, T]; moves the running means."""
        return torch.where(last_token(batch.mask), super().__call__(advantages, batch), advantages)
