"""Replay of any past rollout, drawn by recency or by reward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from polyopt.batch import Batch, concat
from polyopt.parts import part
from polyopt.replay.successes import stored_row


@part("replay.buffer")
@dataclass
class RewardSoftmaxReplay:
    """Adds M past rollouts of a prompt to its group: the latest ones, or by softmax of the reward.

    With probability `recent` all M come from the last step that visited the prompt, else entry i is
    drawn with probability softmax_i(inverse_temperature * R_i); never the same entry twice. Of
    equal completions only the newest is kept. For losses that hold whatever policy sampled the
    rollouts (`TrajectoryBalance`); the authors' trainer draws whole batches from its buffer, where
    this adds to the fresh rollouts.

    TBA, arXiv 2503.18929.

    Attributes:
        per_prompt: M.
        capacity: Most rollouts kept per prompt; the oldest leave first.
        recent: Probability of drawing from the last visit only.
        inverse_temperature: Sharpness of the softmax over rewards.
    """

    per_prompt: int = 2
    capacity: int = 100
    recent: float = 0.5
    inverse_temperature: float = 1.0
    pool: dict[str, list[dict[str, Any]]] = field(default_factory=dict, init=False, repr=False)
    visit: int = field(default=0, init=False, repr=False)

    def mix(self, batch: Batch, draws: np.random.Generator) -> Batch:
        """The batch with replayed rows appended."""
        replayed: list[Batch] = []
        next_id = int(batch.rollout.max()) + 1 if len(batch) else 0
        for group in torch.unique(batch.group).tolist():
            first = int((batch.group == group).nonzero()[0])
            known = self._candidates(batch.prompts[first].id, draws)
            for entry in self._drawn(known, draws):
                row = stored_row(batch.select(torch.tensor([first])), entry)
                replayed.append(row.replace(rollout=torch.tensor([next_id + len(replayed)])))
        return concat([batch, *replayed])

    def _candidates(self, prompt: str, draws: np.random.Generator) -> list[dict[str, Any]]:
        """Everything known of a prompt, or only its last visit."""
        known = self.pool.get(prompt, [])
        if known and draws.random() < self.recent:
            newest = max(entry["visit"] for entry in known)
            return [entry for entry in known if entry["visit"] == newest]
        return known

    def _drawn(
        self, known: list[dict[str, Any]], draws: np.random.Generator
    ) -> list[dict[str, Any]]:
        """At most M different entries."""
        count = min(self.per_prompt, len(known))
        if count == 0:
            return []
        chances = self.probabilities([entry["reward"] for entry in known])
        picks = draws.choice(len(known), size=count, replace=False, p=chances)
        return [known[pick] for pick in picks.tolist()]

    def probabilities(self, rewards: list[float]) -> NDArray[np.float64]:
        """softmax(inverse_temperature * R); all above 0, so that M can always be drawn."""
        scores = self.inverse_temperature * np.asarray(rewards, dtype=np.float64)
        weights = np.exp(np.maximum(scores - scores.max(), -600.0))
        return np.asarray(weights / weights.sum())

    def store(self, batch: Batch) -> None:
        """Keep every scored rollout."""
        self.visit += 1
        for i in batch.scored.nonzero().flatten().tolist():
            kept = self.pool.setdefault(batch.prompts[i].id, [])
            kept[:] = [entry for entry in kept if entry["text"] != batch.texts[i]]
            columns = {name: column[i].clone() for name, column in batch.columns.items()}
            entry = {"mask": batch.mask[i].clone(), "reward": float(batch.rewards[i])}
            kept.append({**entry, "columns": columns, "text": batch.texts[i], "visit": self.visit})
            del kept[: -self.capacity]

    def state_dict(self) -> dict[str, Any]:
        """The pool, and how many batches it has seen."""
        return {"pool": self.pool, "visit": self.visit}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.pool = {prompt: list(kept) for prompt, kept in state["pool"].items()}
        self.visit = state["visit"]
