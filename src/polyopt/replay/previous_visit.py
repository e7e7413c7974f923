"""Each prompt's previous rollout, brought along only to see how far the policy has moved on it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyopt.batch import Batch, concat
from polyopt.parts import part


@part("replay.buffer", needs={"logp_old"}, provides={"revisit"})
@dataclass
class PreviousVisit:
    """Adds to each group its prompt's previous rollout, unscored, and a column `revisit` [N].

    The added row's `logp_sampler` is from then and its `logp_old` from now. Being unscored it gets
    no credit, and `drop_unscored` keeps it from training.
    Single-stream Policy Optimization, arXiv 2509.13232.
    """

    last: dict[str, dict[str, Any]] = field(default_factory=dict, init=False, repr=False)

    def mix(self, batch: Batch, draws: np.random.Generator) -> Batch:
        """The fresh batch with the known prompts' previous rollouts appended."""
        fresh = batch.replace(revisit=torch.zeros(len(batch), dtype=torch.bool))
        first = {group: row for row, group in reversed(list(enumerate(batch.group.tolist())))}
        known = [row for row in sorted(first.values()) if batch.prompts[row].id in self.last]
        next_id = int(batch.rollout.max()) + 1 if len(batch) else 0
        added = [self._row(fresh, row, next_id + i) for i, row in enumerate(known)]
        return concat([fresh, *added])

    def _row(self, fresh: Batch, row: int, rollout: int) -> Batch:
        """The remembered rollout of the prompt of a row, as a row of that row's group."""
        like = fresh.select(torch.tensor([row]))
        entry = self.last[like.prompts[0].id]
        columns: dict[str, Tensor] = {name: value[None] for name, value in entry["columns"].items()}
        return dataclasses.replace(
            like,
            mask=entry["mask"][None],
            rollout=torch.tensor([rollout]),
            rewards=torch.full_like(like.rewards, float("nan")),
            columns={**columns, "revisit": torch.ones(1, dtype=torch.bool)},
            texts=(entry["text"],),
        )

    def store(self, batch: Batch) -> None:
        """Remember the last scored rollout of every prompt."""
        for row in batch.scored.nonzero().flatten().tolist():
            self.last[batch.prompts[row].id] = {
                "mask": batch.mask[row].clone(),
                "columns": {name: column[row].clone() for name, column in batch.columns.items()},
                "text": batch.texts[row],
            }

    def state_dict(self) -> dict[str, Any]:
        """The last rollouts."""
        return {"last": self.last}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.last = dict(state["last"])
