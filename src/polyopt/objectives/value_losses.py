"""Losses of the value head that differ in what the head is taught, and on which rollouts."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Bool
from torch import Tensor

from polyopt.batch import Batch
from polyopt.errors import RecipeError
from polyopt.objectives.protocol import Evaluation, TokenLoss
from polyopt.parts import part


def finished(batch: Batch) -> Bool[Tensor, "N T"]:
    """Sampled tokens of rollouts that ended by themselves."""
    return batch.mask & ~batch["truncated"].bool()[:, None]


@part(
    "objective.value",
    needs={"returns", "values", "truncated", "evaluation:values"},
    provides={"values"},
)
@dataclass(frozen=True)
class FinishedValueLoss:
    """coefficient * (v - R)^2 / 2 at the tokens of finished rollouts, 0 at those of cut-off ones.

    The head learns only from what really came out. Denominators are those of the recipe's
    aggregation. T-PPO, arXiv 2506.15050, section on token filtering (reconstructed from the
    abstract).

    Attributes:
        coefficient: Factor of the loss.
    """

    coefficient: float = 0.1

    def __call__(self, evaluation: Evaluation, batch: Batch) -> TokenLoss:
        """Token losses [N, T]."""
        if evaluation.values is None:
            raise RecipeError("the value loss needs an evaluation with values")
        error = (evaluation.values - batch["returns"]).square() / 2
        held = error.masked_fill(~finished(batch), 0.0)
        return TokenLoss(held, {"value/error": held, "value/mean": evaluation.values})
