"""Aggregations: each token's coefficient, from the mask of the whole optimizer batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from polyopt.batch import Batch
from polyopt.levels import rollout_index
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
        rollouts = len(torch.unique(batch.rollout))
        return _weights(batch) / (max(rollouts, 1) * _constant_length(self.length, batch))


@part("objective.aggregation")
@dataclass(frozen=True)
class LengthWeighted:
    """Token sums of rollouts weighted by length: f_i / (rollouts * L), f_i = n_i^-alpha / mean.

    With the variance of a rollout's gradient growing like its length n_i, alpha = 1 gives the
    unbiased combination of least variance; alpha = 0 is `ConstantLength`. Rollouts without a
    trained token don't count. L as in `ConstantLength`.

    Delta L normalization, arXiv 2509.07558 (the authors scale advantages, over the whole rollout
    batch; here the factor belongs to the optimizer batch: equal for one step per batch).

    Attributes:
        alpha: 1 in the paper's CountDown runs, 0.75 for mathematics.
        length: L in tokens; None for the run's completion limit.
    """

    alpha: float = 0.75
    length: float | None = None

    def factors(self, batch: Batch) -> Float[Tensor, " N"]:
        """f_i of each row's rollout; 0 for one without a trained token."""
        index = rollout_index(batch)
        rows = _weights(batch).sum(1)
        lengths = rows.new_zeros(len(rows)).index_add(0, index, rows)
        live = lengths > 0
        powers = torch.where(live, lengths.clamp(min=1) ** -self.alpha, torch.zeros_like(lengths))
        mean = powers.sum() / live.sum().clamp(min=1)
        return torch.where(live, powers / mean, powers)[index]

    def __call__(self, batch: Batch) -> Tokens:
        """Coefficients [N, T].

        Raises:
            ValueError: No `length`, and the batch doesn't say the run's limit.
        """
        mask = _weights(batch)
        rollouts = _live_rollouts(_rollout_tokens(mask, batch), batch)
        limit = rollouts * _constant_length(self.length, batch)
        return mask * self.factors(batch)[:, None] / limit


@part("objective.aggregation")
@dataclass(frozen=True)
class TokenBudgetMean:
    """Every token alike, by a constant: 1 / budget, however many tokens train.

    C3PO, arXiv 2506.14731; with `selection/TokenBudget`, which sees that no more of them train.

    Attributes:
        budget: Tokens per optimizer step.
    """

    budget: float = 409600.0

    def __call__(self, batch: Batch) -> Tokens:
        """Coefficients [N, T]."""
        return _weights(batch) / self.budget


def _constant_length(length: float | None, batch: Batch) -> float:
    """A given length, or else the run's completion limit, in tokens."""
    if length is not None:
        return length
    if "max_tokens" not in batch:
        raise ValueError("constant-length aggregation needs a length: ConstantLength(length=L)")
    return float(batch["max_tokens"].max())


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
