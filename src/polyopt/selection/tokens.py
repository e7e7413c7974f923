"""Selections of rollouts and tokens, once credit is assigned."""

from __future__ import annotations

from polyopt.batch import Batch
from polyopt.parts import part


@part("selection.parts", needs={"truncated"})
def drop_truncated(batch: Batch) -> Batch:
    """Rollouts that hit the completion limit train no token, and leave the denominators.

    Overlong filtering: DAPO, arXiv 2503.14476, section 3.4.
    """
    kept = ~batch["truncated"].bool()
    return batch.replace(loss_mask=batch.loss_mask & kept[:, None])
