"""Random draws that belong to tokens, for parts that choose tokens by chance."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from polyopt.batch import Batch
from polyopt.seeding import generator


def uniform_draws(batch: Batch, seed: int, step: int) -> Float[Tensor, "N T"]:
    """The column `uniform`: a draw from [0, 1) for each place of each row.

    Draws derive from (seed, step, rollout, nth row of the rollout), so neither the order of rows
    nor padding changes them. A generator per row, since each has its own stream.
    """
    seen: dict[int, int] = {}
    rows = []
    for rollout in batch.rollout.tolist():
        nth = seen[rollout] = seen.get(rollout, -1) + 1
        draws = generator(seed, step, "selection/uniform", rollout, nth)
        rows.append(draws.random(batch.width))
    table = np.stack(rows) if rows else np.zeros((0, batch.width))
    return torch.from_numpy(table).to(batch.mask.device, batch.rewards.dtype)
