"""What a screen and a selection part are."""

from __future__ import annotations

from typing import Protocol

from jaxtyping import Bool
from torch import Tensor

from polyopt.batch import Batch


class Screen(Protocol):
    """Decides, as soon as rewards are known, which rollouts go on at all.

    A screen may ask for replacements: if it has a `max_rounds` above 1, the trainer samples further
    prompts until the step has its number of them, in at most that many rounds.
    """

    def __call__(self, batch: Batch) -> Bool[Tensor, " N"]:
        """Rows to keep."""


class SelectionPart(Protocol):
    """Decides which rollouts and tokens train, and at what weight, once credit is assigned."""

    def __call__(self, batch: Batch) -> Batch:
        """Fewer rows, a smaller `loss_mask` [N, T] or other `weights` [N, T].

        What leaves rows or mask also leaves the denominators of the loss; a weight doesn't.
        """


class RefillSize(Protocol):
    """How many prompts to sample when screens left a step with too few."""

    def __call__(self, missing: int, per_step: int, silent_share: float) -> int:
        """Prompts of the next round.

        Args:
            missing: Prompts that the step still lacks.
            per_step: Prompts per step.
            silent_share: Share of the last round's prompts that were screened out.
        """
