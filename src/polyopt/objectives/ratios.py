"""Importance ratios, as logarithms, at token and at sequence level."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from polyopt.batch import Batch
from polyopt.objectives.protocol import Tokens
from polyopt.parts import part


def log_ratio(logp: Tokens, batch: Batch) -> Tokens:
    """Log-probability of each token less its `logp_old`; 0 at tokens that don't train."""
    return (logp - batch["logp_old"]).masked_fill(~batch.loss_mask, 0.0)


def rollout_sum(values: Tokens, batch: Batch) -> Float[Tensor, " N"]:
    """Sum over the trained tokens of each row's rollout, given back to each of its rows."""
    index = torch.unique(batch.rollout, return_inverse=True)[1]
    rows = values.masked_fill(~batch.loss_mask, 0.0).sum(1)
    return rows.new_zeros(len(rows)).index_add(0, index, rows)[index]


@part("objective.ratio", needs={"logp_old"})
def token_ratio(logp: Tokens, batch: Batch) -> Tokens:
    """Each token its own ratio: log rho_t = logp_t - logp_old_t (PPO, arXiv 1707.06347)."""
    return log_ratio(logp, batch)


@part("objective.ratio", needs={"logp_old"})
def sequence_ratio(logp: Tokens, batch: Batch) -> Tokens:
    """Every token the geometric mean of its rollout's ratios: log s = mean_t (logp - logp_old).

    An empty completion has ratio 1. GSPO, arXiv 2507.18071, eq. 7.
    """
    mean = rollout_sum(log_ratio(logp, batch), batch) / _tokens(logp, batch)
    return mean[:, None].expand_as(logp)


@part("objective.ratio", needs={"logp_old"})
def sequence_token_ratio(logp: Tokens, batch: Batch) -> Tokens:
    """Value of the sequence ratio, gradient of the token's own: sg(log s) + logp_t - sg(logp_t).

    For advantages that differ from token to token. GSPO-token, arXiv 2507.18071, eq. 14.
    """
    return sequence_ratio(logp, batch).detach() + logp - logp.detach()


def _tokens(logp: Tokens, batch: Batch) -> Float[Tensor, " N"]:
    """Trained tokens of each row's rollout, at least 1."""
    return rollout_sum(batch.loss_mask.to(logp.dtype), batch).clamp(min=1)
