"""Risk: credit by where a bundle's score falls among the quantiles of such scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from polyopt.batch import Batch
from polyopt.errors import RecipeError
from polyopt.groups import (
    group_count,
    group_first,
    group_min,
    group_quantile,
    group_rank,
    group_std,
    group_sum,
    subgroups,
)
from polyopt.parts import part
from polyopt.rollout_table import RolloutTable

Advantages = Float[Tensor, "N T"]
PerPaper = Float[Tensor, " P"]

LEVELS = tuple(round(0.05 * i, 2) for i in range(1, 20))
"""Levels of the tracked quantiles."""


@dataclass(frozen=True)
class Papers:
    """Bundles of prompts answered as one paper: the j-th rollouts of a bundle's prompts.

    Attributes:
        of_rollout: Paper of each rollout, counted from 0. [R]
        used: Rollouts that are on a paper: prompts with more rollouts than others keep some back.
        score: Sum of the paper's rewards. [P]
        bundle: Bundle of each paper, counted from 0. [P]
    """

    of_rollout: Int[Tensor, " R"]
    used: Bool[Tensor, " R"]
    score: PerPaper
    bundle: Int[Tensor, " P"]

    @classmethod
    def of(cls, table: RolloutTable, bundle: Int[Tensor, " R"]) -> Papers:
        """Number the papers of each bundle; a bundle has as many as its shortest group rollouts."""
        place = group_rank(torch.zeros_like(table.rewards), table.group)
        count = group_count(table.group, table.rewards)
        used = place < group_min(count, bundle)
        paper = subgroups(place, bundle)
        first = torch.unique(group_first(paper))
        scores = group_sum(table.rewards * used.to(table.rewards.dtype), paper)
        alive = used[first]
        number = torch.cumsum(alive, 0) - 1
        return cls(
            number[torch.searchsorted(first, group_first(paper))],
            used,
            scores[first][alive],
            torch.unique(bundle[first][alive], return_inverse=True)[1],
        )


def bundles_of(batch: Batch, table: RolloutTable, size: int) -> Int[Tensor, " R"]:
    """The batch's `bundle` [N] of each rollout, else `size` prompts each in order of sampling."""
    given = table.column(batch["bundle"]) if "bundle" in batch else group_first(table.group)
    order: Tensor = torch.unique(given, return_inverse=True)[1]
    return order if "bundle" in batch else order // size


def range_and_tail(
    score: PerPaper, low: PerPaper, high: PerPaper, levels: tuple[float, float], eps: float
) -> tuple[PerPaper, PerPaper]:
    """Range value at risk between two quantiles, and the tail below the lower one:

    ((s - q_a)^+ - (s - q_b)^+ + q_a - q_b) / (b - a + eps), from its lowest to 0, and
    -(q_a - s)^+ / (a + eps).
    """
    a, b = levels
    above = (score - low).clamp(min=0) - (score - high).clamp(min=0) + low - high
    return above / (b - a + eps), -(low - score).clamp(min=0) / (a + eps)


def tracked_step(
    quantiles: Float[Tensor, " L"], levels: Float[Tensor, " L"], scores: PerPaper, rate: float
) -> Float[Tensor, " L"]:
    """q <- q + rate (level - share of scores below q)."""
    below = (scores[None] < quantiles[:, None]).to(quantiles.dtype).mean(1)
    return quantiles + rate * (levels - below)


@part("advantages.estimator")
@dataclass
class MixedValueAtRisk:
    """Bundles of prompts are scored as papers; A = (tail C + range) / (tail + 1), scaled twice.

    Range and tail are those of `range_and_tail`, with quantiles of paper scores that are tracked
    over training (a bundle's own as long as there are none). The result is divided by the deviation
    of the bundle's paper scores, and for each rollout by that of its prompt's rewards; a deviation
    of at most `flat` counts as 1. Never positive: the best papers get 0.

    A bundle is given by the column `bundle` [N], else it is `size` prompts in order of sampling.
    RiskPO, "Risk-based Policy Optimization via Verifiable Reward for LLM Post-Training",
    arXiv 2510.00911. Its code takes 1 for flat prompts only, and divides flat bundles by eps.

    Attributes:
        low: Level a.
        high: Level b.
        tail: w, weight of the tail; 0 leaves the range alone.
        size: Prompts per bundle.
        rate: Step of the tracked quantiles.
        eps: Added to divisors.
        flat: Largest deviation of a prompt's rewards that counts as 1.
        flat_bundle: The same for the papers of a bundle.
        quantiles: Tracked quantiles at `LEVELS`; empty before the first batch.
    """

    low: float = 0.2
    high: float = 0.9
    tail: float = 1.5
    size: int = 5
    rate: float = 0.1
    eps: float = 1e-6
    flat: float = 1e-3
    flat_bundle: float = 1e-3
    quantiles: list[float] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high < 1:
            raise RecipeError(f"levels low={self.low}, high={self.high}: need 0 < low < high < 1.")

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]; the papers' scores move the tracked quantiles."""
        table = RolloutTable.of(batch)
        papers = Papers.of(table, bundles_of(batch, table, self.size))
        credit = self.paper_credit(papers)[papers.of_rollout] / self._divisor(
            group_std(table.rewards, table.group), self.flat
        )
        self.track(papers.score)
        return table.spread(torch.where(papers.used, credit, 0.0))

    def paper_credit(self, papers: Papers) -> PerPaper:
        """Credit of each paper, over the deviation of its bundle."""
        score, bundle = papers.score, papers.bundle
        low, high = (self._quantile(level, score, bundle) for level in (self.low, self.high))
        ranged, below = range_and_tail(score, low, high, (self.low, self.high), self.eps)
        mixed = (self.tail * below + ranged) / (self.tail + 1)
        deviation = group_std(score, bundle)
        alone = group_count(bundle, score) == 1
        return mixed / self._divisor(torch.where(alone, 1.0, deviation), self.flat_bundle)

    def track(self, scores: PerPaper) -> None:
        """Move the tracked quantiles; the first batch sets them."""
        if len(scores) == 0:
            return
        levels = torch.tensor(LEVELS, dtype=torch.float64, device=scores.device)
        if not self.quantiles:
            self.quantiles = scores.double().quantile(levels).tolist()
            return
        now = torch.tensor(self.quantiles, dtype=torch.float64, device=scores.device)
        self.quantiles = tracked_step(now, levels, scores.double(), self.rate).tolist()

    def _quantile(self, level: float, score: PerPaper, bundle: Int[Tensor, " P"]) -> PerPaper:
        """The tracked quantile nearest to a level, else that of the bundle's papers."""
        if self.quantiles:
            nearest = min(range(len(LEVELS)), key=lambda i: abs(LEVELS[i] - level))
            return torch.full_like(score, self.quantiles[nearest])
        return group_quantile(score, bundle, level)

    def _divisor(self, deviation: PerPaper, flat: float) -> PerPaper:
        return torch.where(deviation <= flat, 1.0, deviation) + self.eps

    def state_dict(self) -> dict[str, Any]:
        """The tracked quantiles."""
        return {"quantiles": self.quantiles}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.quantiles = list(state["quantiles"])
