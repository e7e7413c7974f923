"""A rollout's ratio as the plain mean of its tokens' ratios."""

from __future__ import annotations

import torch

from polyopt.batch import Batch
from polyopt.levels import rollout_mean, rollout_sum
from polyopt.objectives.protocol import Tokens
from polyopt.objectives.ratios import log_ratio
from polyopt.objectives.surrogates import bounded_ratio
from polyopt.parts import part


@part("objective.ratio", needs={"logp_old"})
def arithmetic_sequence_ratio(logp: Tokens, batch: Batch) -> Tokens:
    """Every token the mean of its rollout's ratios: rho = mean_t exp(logp - logp_old).

    An empty completion has ratio 1. GRPO-S, arXiv 2508.04349.
    """
    mean = rollout_mean(bounded_ratio(log_ratio(logp, batch)), batch)
    some = rollout_sum(batch.loss_mask.to(logp.dtype), batch) > 0
    return torch.where(some, mean, 1.0).log()[:, None].expand_as(logp)
