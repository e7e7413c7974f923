"""Control rollouts take the place of others."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from polyopt.batch import Batch
from polyopt.levels import rollout_mean
from polyopt.parts import part


@part("selection.parts", needs={"control", "advantages", "entropy", "logp_old"})
@dataclass(frozen=True)
class SpliceControls:
    """Better controls, with advantage 1, replace as many of the first plain rollouts.

    Kept are controls whose advantage is above `threshold`, at most `most`, and half of them where
    the plain rollouts' mean entropy is above `target`. Rollouts are counted in order of id. All
    are trained on the log-probabilities at the run's own temperature (`logp_old`).

    AEPO, arXiv 2510.08141, as in the authors' trainer (the equation adds them instead:
    `ControlledSurrogate`, `WithControls`).

    Attributes:
        target: Entropy that is aimed at, in nats.
        threshold: Least advantage of a control.
        most: Most controls that train.
    """

    target: float = 0.5
    threshold: float = 0.05
    most: int = 60

    def chosen(self, batch: Batch, entropy: float) -> tuple[Int[Tensor, " C"], Int[Tensor, " M"]]:
        """Rows of the controls and of the plain rollouts that train."""
        order = batch.rollout.argsort(stable=True)
        control = batch["control"][order] > 0
        better = rollout_mean(batch["advantages"], batch)[order] > self.threshold
        kept = order[control & better][: self.most]
        if entropy > self.target:
            kept = kept[: len(kept) // 2]
        return kept, order[~control][len(kept) :]

    def __call__(self, batch: Batch) -> Batch:
        """The batch with fewer rows, controls first."""
        plain = batch.mask & (batch["control"] <= 0)[:, None]
        entropy = float(batch["entropy"][plain].mean()) if plain.any() else 0.0
        kept, rest = self.chosen(batch, entropy)
        ones = batch["advantages"].clone()
        ones[kept] = batch.mask[kept].to(ones.dtype)
        return batch.replace(advantages=ones).select(torch.cat([kept, rest]))
