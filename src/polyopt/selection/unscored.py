"""Selection by whether a rollout could be scored."""

from __future__ import annotations

from polyopt.batch import Batch
from polyopt.parts import part


@part("selection.parts")
def drop_unscored(batch: Batch) -> Batch:
    """Rollouts without a known reward train no token, and leave the denominators."""
    return batch.replace(loss_mask=batch.loss_mask & batch.scored[:, None])
