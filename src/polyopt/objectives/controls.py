"""Control rollouts as a term of their own in the loss."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from polyopt.batch import Batch
from polyopt.errors import RecipeError
from polyopt.objectives.aggregation import sequence_mean_token_sum, token_mean
from polyopt.objectives.protocol import Aggregation, Evaluation, Surrogate, TokenLoss, Tokens
from polyopt.objectives.surrogates import ClippedSurrogate
from polyopt.parts import name_of, part


@part("objective.surrogate", needs={"advantages", "control", "logp_old"}, claims={"reinforce"})
@dataclass(frozen=True)
class ControlledSurrogate:
    """-A logp at the tokens of controls (`control` > 0), another surrogate everywhere else.

    AEPO, arXiv 2510.08141: plain REINFORCE on tempered samples.

    Attributes:
        plain: Surrogate of the other rollouts; one that gives token losses.
    """

    plain: Surrogate = field(default_factory=ClippedSurrogate)

    def __call__(self, log_ratio: Tokens, evaluation: Evaluation, batch: Batch) -> TokenLoss:
        """Token losses [N, T].

        Raises:
            RecipeError: The other surrogate has its own reduction.
        """
        plain = self.plain(log_ratio, evaluation, batch)
        if not isinstance(plain, TokenLoss):
            raise RecipeError(
                f"controls need a surrogate of token losses, and {name_of(self.plain)!r} has its "
                "own reduction: give ControlledSurrogate another one."
            )
        control = (batch["control"] > 0)[:, None]
        score = -batch["advantages"] * evaluation.logp
        return TokenLoss(torch.where(control, score, plain.loss), plain.metrics)


@part("objective.aggregation", needs={"control"})
@dataclass(frozen=True)
class WithControls:
    """Plain rollouts and controls aggregated apart; the controls' term weighs alpha.

    AEPO, arXiv 2510.08141: grad J = grad J_GRPO + alpha E[grad log pi(o) R(o)] over tempered o.

    Attributes:
        alpha: Weight of the controls' term.
        plain: Aggregation of the other rollouts.
        controls: Aggregation of the controls.
    """

    alpha: float = 0.2
    plain: Aggregation = token_mean
    controls: Aggregation = sequence_mean_token_sum

    def __call__(self, batch: Batch) -> Tokens:
        """Coefficients [N, T]."""
        control = (batch["control"] > 0)[:, None]
        rest = batch.replace(loss_mask=batch.loss_mask & ~control)
        tempered = batch.replace(loss_mask=batch.loss_mask & control)
        return self.plain(rest) + self.alpha * self.controls(tempered)
