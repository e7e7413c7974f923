"""Beliefs about how often each prompt is solved, and prompts drawn by how uncertain they are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from polyopt.batch import Batch, Prompt
from polyopt.parts import part


@dataclass
class PromptBeliefs:
    """A Beta(alpha, beta) belief about the success rate of each prompt.

    SPO, "Single-stream Policy Optimization", arXiv 2509.13232.

    Attributes:
        beliefs: alpha and beta by prompt id; an unknown prompt has 1/2 and 1/2.
    """

    beliefs: dict[str, tuple[float, float]] = field(default_factory=dict)

    def values(self, names: Sequence[str]) -> list[float]:
        """Expected success rate of each prompt: alpha / (alpha + beta)."""
        pairs = [self.beliefs.get(name, (0.5, 0.5)) for name in names]
        return [alpha / (alpha + beta) for alpha, beta in pairs]

    def learn(self, names: Sequence[str], rewards: Sequence[float], kept: Sequence[float]) -> None:
        """alpha <- rho alpha + r, beta <- rho beta + 1 - r, one reward after the other."""
        for name, reward, rho in zip(names, rewards, kept, strict=True):
            alpha, beta = self.beliefs.get(name, (0.5, 0.5))
            self.beliefs[name] = (rho * alpha + reward, rho * beta + 1 - reward)

    def state_dict(self) -> dict[str, Any]:
        """The beliefs."""
        return {"beliefs": self.beliefs}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.beliefs = {name: (pair[0], pair[1]) for name, pair in state["beliefs"].items()}


def belief_from_scores(scores: Sequence[float], least: float = 0.875) -> tuple[float, float]:
    """alpha and beta from n offline scores, k of them above 0, worth N0 = 1 / (1 - least) visits:
    alpha = N0 (k + 1/2) / (n + 1), beta = N0 (n - k + 1/2) / (n + 1); 1/2 each without scores.
    """
    n = len(scores)
    if n == 0:
        return 0.5, 0.5
    wins = sum(score > 0 for score in scores)
    worth = 1 / (1 - least) / (n + 1)
    return worth * (wins + 0.5), worth * (n - wins + 0.5)


def visit_weight(value: float, explore: float = 0.05) -> float:
    """sqrt(v (1 - v)) + explore: how much a visit to a prompt of success rate v promises."""
    inside = min(max(value, 0.0), 1.0)
    return math.sqrt(inside * (1 - inside)) + explore


@part("prompts.filters")
@dataclass
class UncertainFirst:
    """Visits a prompt with probability w / (1/2 + explore), w = sqrt(v (1 - v)) + explore.

    v is the believed success rate; beliefs keep a share `kept` at each visit. Proposals in shuffled
    order, accepted so, come in proportion to w, which is how SPO draws its prompts (there, without
    replacement within a step). Single-stream Policy Optimization, arXiv 2509.13232.

    Attributes:
        explore: Least weight.
        kept: rho of the beliefs kept here.
    """

    explore: float = 0.05
    kept: float = 0.96
    beliefs: PromptBeliefs = field(default_factory=PromptBeliefs, init=False, repr=False)

    def keep(self, prompt: Prompt, draws: np.random.Generator) -> bool:
        """Whether to visit the prompt."""
        (value,) = self.beliefs.values([prompt.id])
        return bool(draws.random() < visit_weight(value, self.explore) / (0.5 + self.explore))

    def observe(self, batch: Batch) -> None:
        """Learn from every scored rollout of a step."""
        values = batch.columns.get("accuracy", batch.rewards)
        rows = (~torch.isnan(values)).nonzero().flatten().tolist()
        names = [batch.prompts[row].id for row in rows]
        self.beliefs.learn(names, values[rows].tolist(), [self.kept] * len(rows))

    def state_dict(self) -> dict[str, Any]:
        """The beliefs."""
        return self.beliefs.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.beliefs.load_state_dict(state)
