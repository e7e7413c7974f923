"""The advantages field of a recipe, and how its parts are run."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polyopt.advantages.baselines import raw_reward
from polyopt.advantages.protocol import AdvantagePart, Provider
from polyopt.batch import Batch
from polyopt.parts import name_of


@dataclass(frozen=True)
class Advantages:
    """The advantages field of a recipe.

    Attributes:
        estimator: Turns rewards into the first credit.
        shaping: Chain of parts that change it, in order.
    """

    estimator: AdvantagePart = raw_reward
    shaping: tuple[AdvantagePart, ...] = ()

    def __call__(self, batch: Batch) -> Batch:
        """The batch with `advantages` [N, T], and what each part added as `advantages/NAME`.

        Rows whose reward is unknown get exactly 0: they neither train nor shift a baseline. Parts
        that provide further columns (the returns of a value method) have them added too.
        """
        known = batch.scored
        scored = batch.select(known)
        total = torch.zeros(scored.mask.shape, dtype=batch.rewards.dtype, device=batch.mask.device)
        columns: dict[str, Tensor] = {}
        with torch.no_grad():
            for part in (self.estimator, *self.shaping):
                if isinstance(part, Provider):
                    provided = part.provide(scored)
                    scored = scored.replace(**provided)
                    columns |= {name: _scatter(column, known) for name, column in provided.items()}
                new = part(total, scored).masked_fill(~scored.mask, 0.0)
                columns[f"advantages/{name_of(part)}"] = _scatter(new - total, known)
                total = new
        return batch.replace(advantages=_scatter(total, known), **columns)


def _scatter(values: Tensor, rows: Tensor) -> Tensor:
    """Values of some rows among zeros for the others."""
    whole = values.new_zeros(len(rows), *values.shape[1:])
    whole[rows] = values
    return whole
