"""Screens: which fresh rollouts go on at all."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from polyopt.batch import Batch
from polyopt.parts import part


def verdict(batch: Batch) -> Float[Tensor, " N"]:
    """What rollouts are judged by: the column `accuracy` where the task has one, else rewards."""
    return batch.columns.get("accuracy", batch.rewards)


def has_signal(batch: Batch) -> Bool[Tensor, " N"]:
    """Rows whose group holds at least two different verdicts (unscored rollouts don't count)."""
    index, values = batch.group_index, verdict(batch)
    known = ~values.isnan()
    groups = int(index.max()) + 1 if len(index) else 0
    low = values.new_full((groups,), torch.inf)
    low = low.scatter_reduce(0, index[known], values[known], "amin")
    high = values.new_full((groups,), -torch.inf)
    high = high.scatter_reduce(0, index[known], values[known], "amax")
    return (low < high)[index]


@part("selection.screens", min_rollouts=2)
@dataclass(frozen=True)
class DynamicSampling:
    """Keeps prompts whose rollouts disagree, and has others sampled in place of the rest.

    Judged by accuracy, not by the shaped reward, so length differences alone keep no group. A
    prompt with a single rollout is kept. If `max_rounds` rounds don't fill the step, it trains on
    what there is and says so (the official code stops with an error).

    DAPO, arXiv 2503.14476, eq. 11.
    """

    max_rounds: int = 10

    def __call__(self, batch: Batch) -> Bool[Tensor, " N"]:
        """Rows to keep."""
        index = batch.group_index
        alone = torch.bincount(index)[index] == 1 if len(index) else index.bool()
        return has_signal(batch) | alone


@part("selection.refill")
def exact_refill(missing: int, per_step: int, silent_share: float) -> int:
    """As many prompts as are missing."""
    return missing


@part("selection.refill")
@dataclass(frozen=True)
class AdaptiveRefill:
    """missing / (1 - share of silent groups in the last round) * slack, up to a step's prompts.

    At least `minimum` prompts (the authors' 64 belongs to steps of 128 and more).
    GRESO, arXiv 2506.02177, section 4.3.
    """

    slack: float = 1.25
    minimum: int = 1

    def __call__(self, missing: int, per_step: int, silent_share: float) -> int:
        """Prompts of the next sampling round."""
        want = int(missing / max(1 - silent_share, 1e-6) * self.slack)
        return max(min(want, per_step), self.minimum)
