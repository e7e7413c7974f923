"""Penalties added to the surrogate: KL to the reference policy, entropy bonus, value loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from polyopt.batch import Batch
from polyopt.errors import RecipeError
from polyopt.objectives.protocol import Evaluation, TokenLoss, Tokens
from polyopt.parts import part

KL_BOUND = 20.0
"""Log-ratios to the reference are held to +-20 before exp."""


def k1(logp: Tokens, logp_ref: Tokens) -> Tokens:
    """logp - logp_ref: unbiased for KL(pi || ref), but its gradient as a loss is 0 in expectation.

    J. Schulman, "Approximating KL divergence" (2020).
    """
    return logp - logp_ref


def k2(logp: Tokens, logp_ref: Tokens) -> Tokens:
    """(logp - logp_ref)^2 / 2: as a loss, its expected gradient is that of KL(pi || ref)."""
    return (logp - logp_ref).square() / 2


def k3(logp: Tokens, logp_ref: Tokens) -> Tokens:
    """exp(-d) + d - 1, d = logp - logp_ref: unbiased, never negative, low variance."""
    minus_d = (logp_ref - logp).clamp(-KL_BOUND, KL_BOUND)
    return minus_d.exp() - minus_d - 1


@part("objective.kl", needs={"logp_ref"})
@dataclass(frozen=True)
class KLPenaltyK1:
    """coefficient * k1 in the loss. Its expected gradient is 0: meant for comparison only."""

    coefficient: float = 0.001

    def __call__(self, evaluation: Evaluation, batch: Batch) -> TokenLoss:
        """Token losses [N, T]."""
        value = k1(evaluation.logp, batch["logp_ref"])
        return TokenLoss(value, {"kl_ref": value})


@part("objective.kl", needs={"logp_ref"})
@dataclass(frozen=True)
class KLPenaltyK2:
    """coefficient * k2 in the loss: the gradient of KL(pi || ref)."""

    coefficient: float = 0.001

    def __call__(self, evaluation: Evaluation, batch: Batch) -> TokenLoss:
        """Token losses [N, T]."""
        value = k2(evaluation.logp, batch["logp_ref"])
        return TokenLoss(value, {"kl_ref": k3(evaluation.logp, batch["logp_ref"])})


@part("objective.kl", needs={"logp_ref"})
@dataclass(frozen=True)
class KLPenaltyK3:
    """coefficient * k3 in the loss: GRPO's form (arXiv 2402.03300, eq. 4).

    As a loss its expected gradient is that of the forward KL(ref || pi), not of KL(pi || ref).
    """

    coefficient: float = 0.04

    def __call__(self, evaluation: Evaluation, batch: Batch) -> TokenLoss:
        """Token losses [N, T]."""
        value = k3(evaluation.logp, batch["logp_ref"])
        return TokenLoss(value, {"kl_ref": value})


@part("objective.entropy", needs={"evaluation:entropy"})
@dataclass(frozen=True)
class EntropyBonus:
    """-coefficient * entropy of the policy at each token (Williams and Peng 1991)."""

    coefficient: float = 0.01

    def __call__(self, evaluation: Evaluation, batch: Batch) -> TokenLoss:
        """Token losses [N, T]."""
        if evaluation.entropy is None:
            raise RecipeError("the entropy bonus needs an evaluation with entropy")
        return TokenLoss(-evaluation.entropy, {"entropy": evaluation.entropy})


@part("objective.value", needs={"returns", "values", "evaluation:values"}, provides={"values"})
@dataclass(frozen=True)
class ClippedValueLoss:
    """coefficient * max((v - R)^2, (clip(v, v_old - c, v_old + c) - R)^2) / 2.

    PPO with a value head; `values` [N, T] are the head's outputs before the update, `returns`
    [N, T] the targets. arXiv 1707.06347, section 5, with the clip of its reference code.
    """

    coefficient: float = 0.1
    clip: float = 0.2

    def __call__(self, evaluation: Evaluation, batch: Batch) -> TokenLoss:
        """Token losses [N, T]; logs the explained share of squared error through `value/error`."""
        if evaluation.values is None:
            raise RecipeError("the value loss needs an evaluation with values")
        values, old, target = evaluation.values, batch["values"], batch["returns"]
        held = old + (values - old).clamp(-self.clip, self.clip)
        error = torch.maximum((values - target).square(), (held - target).square()) / 2
        return TokenLoss(error, {"value/error": error, "value/mean": values})
