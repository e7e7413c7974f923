"""Aggregations: the coefficient of each token's loss, from the mask of the whole optimizer batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from polyopt.batch import Batch
from polyopt.objectives.protocol import Tokens
from polyopt.parts import part


@part("objective.aggregation")
def token_mean(batch: Batch) -> Tokens:
    """Every token alike: 1 / (trained tokens of the batch). DAPO, arXiv 2503.14476, eq. 12."""
    mask = _weights(batch)
    return mask / mask.sum().clamp(min=1)


@part("objective.aggregation")
def sequence_mean_token_mean(batch: Batch) -> Tokens:
    """Every rollout alike, its tokens sharing: 1 / (rollouts * tokens of the rollout).

    Rollouts without a trained token don't count. GRPO, arXiv 2402.03300, eq. 3.
    """
    mask = _weights(batch)
    length = _rollout_tokens(mask, batch)
    return mask / length.clamp(min=1)[:, None] / _live_rollouts(length, batch)


@part("objective.aggregation")
def sequence_mean_token_sum(batch: Batch) -> Tokens:
    """Sum over a rollout's tokens, mean over rollouts with a trained token (REINFORCE)."""
    mask = _weights(batch)
    return mask / _live_rollouts(_rollout_tokens(mask, batch), batch)


@part("objective.aggregation")
@dataclass(frozen=True)
class ConstantLength:
    """1 / (rollouts * L) with a constant L, so no rollout's length changes a token's weight.

    Rollouts that train no token still count. L is `length`, or else the run's completion limit,
    which the trainer gives as the column `max_tokens`; never the padded width of a batch.
    Dr. GRPO, arXiv 2503.20783, section 3 and listing 1.
    """

    length: float | None = None

    def __call__(self, batch: Batch) -> Tokens:
        """Coefficients [N, T].

        Raises:
            ValueError: No `length`, and the batch doesn't say the run's limit.
        """
        if self.length is None and "max_tokens" not in batch:
            raise ValueError("constant-length aggregation needs a length: ConstantLength(length=L)")
        limit = self.length if self.length is not None else float(batch["max_tokens"].max())
        rollouts = len(torch.unique(batch.rollout))
        return _weights(batch) / (max(rollouts, 1) * limit)


def _weights(batch: Batch) -> Tokens:
    """The loss mask as numbers, in the dtype of the batch's rewards."""
    return batch.loss_mask.to(batch.rewards.dtype)


def _rollout_tokens(mask: Tokens, batch: Batch) -> Float[Tensor, " N"]:
    """Trained tokens of each row's rollout."""
    index = torch.unique(batch.rollout, return_inverse=True)[1]
    rows = mask.sum(1)
    return rows.new_zeros(len(rows)).index_add(0, index, rows)[index]


def _live_rollouts(length: Float[Tensor, " N"], batch: Batch) -> int:
    """Rollouts with at least one trained token; at least 1."""
    return max(len(torch.unique(batch.rollout[length > 0])), 1)
