"""Penalties added to the surrogate: KL to the reference policy, entropy bonus, value loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from polyopt.batch import Batch
from polyopt.divergences import k1 as k1
from polyopt.divergences import k2 as k2
from polyopt.divergences import k3 as k3
from polyopt.divergences import straight_through
from polyopt.errors import RecipeError
from polyopt.objectives.protocol import Evaluation, TokenLoss
from polyopt.parts import part


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

    Attributes:
        coefficient: Factor of the penalty.
        bound: Holds the estimate to +-bound, without a gradient beyond (verl: 10); None doesn't.
    """

    coefficient: float = 0.04
    bound: float | None = None

    def __call__(self, evaluation: Evaluation, batch: Batch) -> TokenLoss:
        """Token losses [N, T]."""
        value = k3(evaluation.logp, batch["logp_ref"], self.bound)
        return TokenLoss(value, {"kl_ref": value})


@part("objective.kl", needs={"logp_ref"})
@dataclass(frozen=True)
class KLPenaltyAbsolute:
    """coefficient * |logp - logp_ref| in the loss: a pull of constant strength ("abs" in verl)."""

    coefficient: float = 0.001

    def __call__(self, evaluation: Evaluation, batch: Batch) -> TokenLoss:
        """Token losses [N, T]."""
        value = k1(evaluation.logp, batch["logp_ref"]).abs()
        return TokenLoss(value, {"kl_ref": k3(evaluation.logp, batch["logp_ref"])})


@part("objective.kl", needs={"logp_ref"})
@dataclass(frozen=True)
class KLPenaltyK1Plus:
    """coefficient * k1 by value, with the gradient of k2: unbiased in both ("k1+" in verl)."""

    coefficient: float = 0.001

    def __call__(self, evaluation: Evaluation, batch: Batch) -> TokenLoss:
        """Token losses [N, T]."""
        logp, logp_ref = evaluation.logp, batch["logp_ref"]
        value = straight_through(k1(logp, logp_ref), k2(logp, logp_ref))
        return TokenLoss(value, {"kl_ref": value})


@part("objective.kl", needs={"logp_ref"})
@dataclass(frozen=True)
class KLPenaltyK3Plus:
    """coefficient * k3 by value, with the gradient of k2: the gradient of KL(pi || ref) and a
    low-variance reading of it ("k3+" in verl).

    Attributes:
        coefficient: Factor of the penalty.
        bound: Holds the estimate to +-bound (verl: 10); None doesn't.
    """

    coefficient: float = 0.001
    bound: float | None = None

    def __call__(self, evaluation: Evaluation, batch: Batch) -> TokenLoss:
        """Token losses [N, T]."""
        logp, logp_ref = evaluation.logp, batch["logp_ref"]
        value = straight_through(k3(logp, logp_ref, self.bound), k2(logp, logp_ref))
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
