"""Bellman regressions: the log-ratio of a token is a relative Q-value."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from polyopt.advantages.statistics import next_token
from polyopt.batch import Batch
from polyopt.errors import RecipeError
from polyopt.objectives.protocol import Evaluation, TokenLoss, Tokens
from polyopt.parts import part


def uniform_value(logits: Float[Tensor, "*B V"]) -> Float[Tensor, "*B"]:
    """Value of the uniform policy: mean_v log softmax(logits)_v, in nats."""
    return logits.log_softmax(-1).mean(-1)


@part(
    "objective.surrogate",
    needs={"advantages", "logp_old", "evaluation:uniform_value", "uniform_value_old"},
)
@dataclass(frozen=True)
class UniformPolicyRegression:
    """L_t = (Q_t - A_t - bootstrap * rho (U_next - U_old_next))^2, Q = rho log(pi / pi_old).

    U is the value of the uniform policy at a token's place (`uniform_value`), the mean
    log-probability over the vocabulary; the target is a constant, and beyond the last token U is 0.
    At pi = pi_old the gradient is -2 rho A: REINFORCE.

    That of the current policy comes with the evaluation, without gradient; that of the old one is
    the column `uniform_value_old` [N, T].

    ROVER, arXiv 2509.24981.

    Attributes:
        rho: Temperature: Q per nat.
        bootstrap: Weight of the next place's value; 0 regresses on the advantage alone.
    """

    rho: float = 1.0
    bootstrap: float = 1.0

    def __call__(self, log_ratio: Tokens, evaluation: Evaluation, batch: Batch) -> TokenLoss:
        """Token losses [N, T]; logs the Bellman error."""
        if evaluation.uniform_value is None:
            raise RecipeError("the regression needs an evaluation with uniform_value")
        error = self.q(evaluation.logp, batch) - self.target(evaluation.uniform_value, batch)
        return TokenLoss(error.square(), {"bellman/error": error.abs()})

    def q(self, logp: Tokens, batch: Batch) -> Tokens:
        """Relative Q-value of each sampled token."""
        return self.rho * (logp - batch["logp_old"]).masked_fill(~batch.loss_mask, 0.0)

    def target(self, uniform_value: Tokens, batch: Batch) -> Tokens:
        """Advantage plus the value that follows; 0 at tokens that don't train."""
        change = self.rho * (uniform_value - batch["uniform_value_old"]).detach()
        ahead = next_token(change, batch.loss_mask)
        return (batch["advantages"] + self.bootstrap * ahead).masked_fill(~batch.loss_mask, 0.0)
