"""Importance ratios, as logarithms, at token and at sequence level."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from polyopt.batch import Batch
from polyopt.levels import rollout_mean
from polyopt.levels import rollout_sum as rollout_sum
from polyopt.objectives.protocol import Tokens
from polyopt.parts import part


def log_ratio(logp: Tokens, batch: Batch) -> Tokens:
    """Log-probability of each token less its `logp_old`; 0 at tokens that don't train."""
    return (logp - batch["logp_old"]).masked_fill(~batch.loss_mask, 0.0)


@part("objective.ratio", needs={"logp_old"})
def token_ratio(logp: Tokens, batch: Batch) -> Tokens:
    """Each token its own ratio: log rho_t = logp_t - logp_old_t (PPO, arXiv 1707.06347)."""
    return log_ratio(logp, batch)


@part("objective.ratio", needs={"logp_old"})
def sequence_ratio(logp: Tokens, batch: Batch) -> Tokens:
    """Every token the geometric mean of its rollout's ratios: log s = mean_t (logp - logp_old).

    An empty completion has ratio 1. GSPO, arXiv 2507.18071, eq. 7.
    """
    return rollout_mean(log_ratio(logp, batch), batch)[:, None].expand_as(logp)


@part("objective.ratio", needs={"logp_old"})
def sequence_product_ratio(logp: Tokens, batch: Batch) -> Tokens:
    """Every token the ratio of its whole completion: log s = sum_t (logp - logp_old).

    The exact importance ratio of a completion as one action, and of a variance that grows with its
    length.
    """
    return rollout_sum(log_ratio(logp, batch), batch)[:, None].expand_as(logp)


@part("objective.ratio", needs={"logp_old"})
def sequence_token_ratio(logp: Tokens, batch: Batch) -> Tokens:
    """Value of the sequence ratio, gradient of the token's own: sg(log s) + logp_t - sg(logp_t).

    For advantages that differ from token to token. GSPO-token, arXiv 2507.18071, eq. 14.
    """
    return sequence_ratio(logp, batch).detach() + logp - logp.detach()


@part("objective.ratio", needs={"logp_old", "advantages"})
@dataclass(frozen=True)
class GeometricMeanRatio:
    """Geometric mean of a rollout's token ratios, each clipped in log space on its harmful side.

    log s = mean_t e_t with e_t = min(d_t, clip_high) where the rollout's advantage is positive and
    max(d_t, -clip_low) where it is negative, d = logp - logp_old. A clipped token has no gradient,
    the others keep theirs. With advantage 0 the ratio is 1. Meant for one advantage per rollout;
    of several, the mean decides the side.

    GMPO, arXiv 2507.20673.

    Attributes:
        clip_low: Lower bound of the log-ratio, as a positive number.
        clip_high: Upper bound of the log-ratio.
    """

    clip_low: float = 0.4
    clip_high: float = 0.4

    def __call__(self, logp: Tokens, batch: Batch) -> Tokens:
        """Log-ratios [N, T], equal within a rollout."""
        d = log_ratio(logp, batch)
        side = rollout_mean(batch["advantages"], batch).sign()[:, None]
        held = torch.where(side > 0, d.clamp(max=self.clip_high), d.clamp(min=-self.clip_low))
        return rollout_mean(held * side.abs(), batch)[:, None].expand_as(logp)
