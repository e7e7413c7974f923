"""Replay of verified successes."""

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


@part("replay.buffer", needs={"logp_old"})
@dataclass
class ReplaySuccesses:
    """Adds up to M verified answers from a prompt's pool to its group of fresh rollouts.

    Replayed rows are judged with the fresh ones as one group, and their old log-probabilities are
    recomputed with the policy that made the fresh ones (ratio 1 at the first step; no correction
    for the weights that really sampled them). A pool with fewer than M answers gives what it has;
    the authors' code fills up with empty responses that count as wrong, which polyopt does not.

    The paper's pool comes from an earlier run's checkpoints. Here it grows as the run goes on;
    `load_state_dict` of an earlier run's pool gives the paper's two phases.

    RLEP, arXiv 2507.07451, section 3.

    Attributes:
        per_prompt: M, answers drawn per group.
        capacity: Most answers kept per prompt; the oldest leave first.
    """

    per_prompt: int = 2
    capacity: int = 16
    pool: dict[str, list[dict[str, Any]]] = field(default_factory=dict, init=False, repr=False)

    def mix(self, batch: Batch, draws: np.random.Generator) -> Batch:
        """The batch with replayed rows appended."""
        replayed: list[Batch] = []
        next_id = int(batch.rollout.max()) + 1 if len(batch) else 0
        for group in torch.unique(batch.group).tolist():
            first = int((batch.group == group).nonzero()[0])
            known = self.pool.get(batch.prompts[first].id, [])
            for pick in self._picks(len(known), draws):
                row = stored_row(batch.select(torch.tensor([first])), known[pick])
                replayed.append(row.replace(rollout=torch.tensor([next_id + len(replayed)])))
        return concat([batch, *replayed])

    def _picks(self, known: int, draws: np.random.Generator) -> list[int]:
        """Which of a pool's answers join; all of a small one."""
        order = draws.permutation(known).tolist()
        return order[: self.per_prompt] if known > self.per_prompt else list(range(known))

    def store(self, batch: Batch) -> None:
        """Keep the rollouts that were right."""
        right = batch.columns.get("accuracy", batch.rewards) >= 1
        for i in right.nonzero().flatten().tolist():
            kept = self.pool.setdefault(batch.prompts[i].id, [])
            columns = {name: column[i].clone() for name, column in batch.columns.items()}
            entry = {"mask": batch.mask[i].clone(), "reward": float(batch.rewards[i])}
            kept.append({**entry, "columns": columns, "text": batch.texts[i]})
            del kept[: -self.capacity]

    def state_dict(self) -> dict[str, Any]:
        """The pool."""
        return {"pool": self.pool}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.pool = {prompt: list(kept) for prompt, kept in state["pool"].items()}


def stored_row(like: Batch, entry: Mapping[str, Any]) -> Batch:
    """A stored rollout as a row of the group that `like` belongs to."""
    columns: dict[str, Tensor] = {n: column[None] for n, column in entry["columns"].items()}
    return dataclasses.replace(
        like,
        mask=entry["mask"][None],
        rewards=torch.tensor([entry["reward"]], dtype=like.rewards.dtype),
        columns=columns,
        texts=(entry["text"],),
    )
