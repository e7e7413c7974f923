"""Selective rollouts: prompts that gave no signal lately are mostly skipped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from polyopt.batch import Batch, Prompt
from polyopt.parts import part


@part("prompts.filters", min_rollouts=2)
@dataclass
class SelectiveRollout:
    """Skips a prompt with probability 1 - max(p^z, floor), z its trailing run of silent visits.

    A visit is easy when its rollouts' mean accuracy is at least `easy_at`, hard when it is at most
    `hard_at`. The bases p adapt once a step, from the second visit of prompts on: down (more
    skipping) where the share of silent groups is at or above its target, else up.

    GRESO, arXiv 2506.02177, sections 4.1 and 4.2. The paper speaks of zero variance only; the
    thresholds, under which one success in sixteen still counts as hard, are the authors' code's.

    Attributes:
        easy: Base for easy runs.
        hard: Base for hard runs.
        easy_at: Mean accuracy from which a visit is easy.
        hard_at: Mean accuracy up to which a visit is hard.
        floor: Least probability of a visit.
        target: Wanted share of silent groups; a third of it easy, two thirds hard.
        step: Change of a base per step.
        least: Lower bound of the bases.
        most: Upper bound of the bases.
    """

    easy: float = 0.5
    hard: float = 0.5
    easy_at: float = 0.98
    hard_at: float = 0.11
    floor: float = 0.01
    target: float = 0.25
    step: float = 0.01
    least: float = 0.05
    most: float = 0.95
    history: dict[str, list[float]] = field(default_factory=dict, init=False, repr=False)

    def runs(self, prompt_id: str) -> tuple[int, int]:
        """Lengths of the trailing runs of easy and of hard visits; at most one isn't 0."""
        easy = hard = 0
        for reward in reversed(self.history.get(prompt_id, [])):
            if reward >= self.easy_at and hard == 0:
                easy += 1
            elif reward <= self.hard_at and easy == 0:
                hard += 1
            else:
                break
        return easy, hard

    def skip_probabilities(self, prompt_id: str) -> tuple[float, float]:
        """Probability of skipping as easy, and then as hard."""
        easy, hard = self.runs(prompt_id)
        return 1 - max(self.easy**easy, self.floor), 1 - max(self.hard**hard, self.floor)

    def keep(self, prompt: Prompt, draws: np.random.Generator) -> bool:
        """Whether to visit the prompt: one draw for easy, one for hard if it comes to that."""
        skip_easy, skip_hard = self.skip_probabilities(prompt.id)
        return bool(draws.random() >= skip_easy and draws.random() >= skip_hard)

    def observe(self, batch: Batch) -> None:
        """Note each prompt's mean accuracy, and adapt the bases once every prompt is known."""
        values = batch.columns.get("accuracy", batch.rewards)
        visits, easy, hard, known = 0, 0, 0, True
        for group in torch.unique(batch.group).tolist():
            rows = (batch.group == group) & ~values.isnan()
            if not rows.any():
                continue
            prompt = batch.prompts[int((batch.group == group).nonzero()[0])]
            mean = float(values[rows].mean())
            silent = bool(values[rows].min() == values[rows].max())
            known = known and prompt.id in self.history
            self.history.setdefault(prompt.id, []).append(mean)
            visits += 1
            easy += silent and mean >= self.easy_at
            hard += silent and mean <= self.hard_at
        if visits and known:
            self.adapt(easy / visits, hard / visits)

    def adapt(self, easy_share: float, hard_share: float) -> None:
        """Move the bases by one step each, given the shares of silent groups."""
        self.easy = self._moved(self.easy, easy_share >= self.target / 3)
        self.hard = self._moved(self.hard, hard_share >= 2 * self.target / 3)

    def _moved(self, base: float, too_many: bool) -> float:
        return min(max(base + (-self.step if too_many else self.step), self.least), self.most)

    def state_dict(self) -> dict[str, Any]:
        """History and current bases."""
        return {"history": self.history, "easy": self.easy, "hard": self.hard}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.history = {prompt: list(visits) for prompt, visits in state["history"].items()}
        self.easy, self.hard = state["easy"], state["hard"]
