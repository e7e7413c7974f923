"""How far what trains is from what sampled it: in versions of the weights, and in nats."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from polyopt.batch import Batch


def with_fresh(batch: Batch) -> Batch:
    """The batch with a column `fresh`: tokens that the newest weights in it sampled."""
    if "provenance" not in batch:
        return batch
    return batch.replace(fresh=batch["provenance"] == batch["provenance"].max())


def sampler_gap(batch: Batch) -> Float[Tensor, "N T"] | None:
    """Trainer's old log-probabilities less the sampler's, in nats; NaN at tokens that aren't fresh.

    Replayed tokens were sampled by other weights. None where the batch can't tell.
    """
    if "logp_sampler" not in batch or "fresh" not in batch:
        return None
    gap = batch["logp_old"] - batch["logp_sampler"]
    return gap.masked_fill(~batch["fresh"], float("nan"))


def drift(logp: Float[Tensor, "N T"], batch: Batch, version: int) -> dict[str, Tensor]:
    """|logp - logp_sampler| at tokens of earlier weights than `version`, 0 at others [N, T]."""
    if "logp_sampler" not in batch or "provenance" not in batch:
        return {}
    moved = (logp.detach() - batch["logp_sampler"]).abs()
    old = (batch["provenance"] >= 0) & (batch["provenance"] < version)
    return {"staleness/drift": moved.masked_fill(~old, 0.0)}


def staleness(batch: Batch, version: int) -> dict[str, float]:
    """Optimizer steps between sampling and training, mean and maximum over trained rollouts.

    A rollout is as old as the oldest of its trained tokens. Forced tokens have no age.

    Args:
        batch: What one optimizer step trains on.
        version: Of the weights that it steps from.
    """
    if "provenance" not in batch:
        return {}
    trained = batch.loss_mask & (batch["provenance"] >= 0)
    rows = trained.any(1)
    if not rows.any():
        return {}
    ages = (version - batch["provenance"]).masked_fill(~trained, 0).amax(1)[rows]
    names, place = torch.unique(batch.rollout[rows], return_inverse=True)
    oldest = ages.new_zeros(len(names)).scatter_reduce(0, place, ages, "amax").double()
    return {"staleness/mean": float(oldest.mean()), "staleness/max": float(oldest.max())}
