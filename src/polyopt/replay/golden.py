"""Golden answers: a reference answer takes a rollout's place where all rollouts failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyopt.batch import FORCED, PADDING, Batch, concat
from polyopt.parts import part


def all_wrong_groups(batch: Batch) -> list[int]:
    """Groups none of whose rollouts is right (accuracy, else reward, above 0); in order of id."""
    verdicts = batch.columns.get("accuracy", batch.rewards)
    right = set(batch.group[verdicts > 0].tolist())
    return [group for group in torch.unique(batch.group).tolist() if group not in right]


def substituted(batch: Batch, golden: Mapping[int, Batch]) -> tuple[Batch, list[int]]:
    """In each group that has a golden row and no right rollout, the last rollout gives way to it.

    The golden row keeps the group and rollout id of the one that it replaces, is worth 1, and has
    whatever columns it brings. Of those it lacks, columns of tokens are 0 in it and others stay.
    Its tokens count as forced, so no sampler's log-probability is looked for. Its `logp_old`
    belongs to the policy before the update, as everyone's.

    GCPO, arXiv 2510.07790 (reconstructed from abstract and summary: one answer, the last place).

    Args:
        batch: Scored rollouts.
        golden: One-row batches by group.

    Returns:
        The batch, rows in their old order, and the indices of the replaced rows.
    """
    rows = [batch.select(torch.tensor([i])) for i in range(len(batch))]
    places = []
    for group in all_wrong_groups(batch):
        if group in golden:
            last = int(batch.rollout.masked_fill(batch.group != group, -1).argmax())
            rows[last] = _in_place_of(rows[last], golden[group])
            places.append(last)
    return (concat(rows) if places else batch), places


def _in_place_of(row: Batch, golden: Batch) -> Batch:
    """The golden row with the ids of another, and every column that the other has."""
    empty = torch.zeros(golden.mask.shape, device=golden.mask.device)
    columns = {
        name: empty.to(column.dtype) if _of_tokens(name, column) else column
        for name, column in row.columns.items()
    }
    provenance = torch.where(golden.mask, FORCED, PADDING)
    given = {"lengths": golden.mask.sum(1), "provenance": provenance}
    known = {name: column for name, column in given.items() if name in row}
    return golden.replace(
        columns={**columns, **known, **golden.columns},
        group=row.group,
        rollout=row.rollout,
        rewards=torch.ones_like(row.rewards),
        prompts=row.prompts,
        texts=golden.texts or row.texts,
    )


def _of_tokens(name: str, column: Tensor) -> bool:
    """Whether a column has a value per completion token."""
    return column.dim() == 2 and name != "prompt_tokens"


@part("replay.buffer", needs={"logp_old"})
@dataclass
class GoldenAnswers:
    """A prompt's golden answer takes the place of its last rollout where all of them failed.

    Answers are tokenised rows (`tokens`, `lengths`, a mask over the answer), put in with `remember`
    before training; a prompt without one is left alone. The trainer evaluates `logp_old` after
    mixing, so an answer starts at ratio 1 like everyone else. GCPO, arXiv 2510.07790.
    """

    answers: dict[str, Batch] = field(default_factory=dict, init=False, repr=False)

    def remember(self, prompt_id: str, answer: Batch) -> None:
        """Keep a prompt's golden answer, a batch of one row."""
        self.answers[prompt_id] = answer

    def mix(self, batch: Batch, draws: np.random.Generator) -> Batch:
        """The batch with golden answers where they are due."""
        known: dict[int, Batch] = {}
        for group, prompt in zip(batch.group.tolist(), batch.prompts, strict=True):
            if prompt.id in self.answers:
                known[group] = self.answers[prompt.id]
        return substituted(batch, known)[0]

    def store(self, batch: Batch) -> None:
        """Fresh rollouts aren't kept."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing: golden answers come with the task."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to restore."""
