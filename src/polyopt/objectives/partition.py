"""Estimates of log Z, the logarithm of the partition function of a KL-regularised optimum."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from polyopt.advantages.trajectories import PerRollout, Trajectories
from polyopt.batch import Batch
from polyopt.divergences import bounded_exp
from polyopt.errors import RecipeError
from polyopt.groups import group_mean
from polyopt.levels import rollout_index, rollout_mean, rollout_sum
from polyopt.objectives.protocol import Evaluation, TokenLoss, Tokens
from polyopt.parts import part


def log_partition(move: PerRollout, worth: PerRollout, rollouts: Trajectories) -> PerRollout:
    """log Z of each rollout's prompt: mean_g (R / beta - move), without gradient (VarGrad).

    `move` = log(pi / pi_ref) of a rollout and `worth` = R / beta, both in nats. Used by TBA, arXiv
    2503.18929.
    """
    return group_mean((worth - move).detach(), rollouts.index)


@part("objective.surrogate", needs={"advantages", "logp_old", "logp_ref", "evaluation:values"})
@dataclass(frozen=True)
class FlowBalance:
    """L_i = w_i (log Z + mean_t logp - beta mean_t A - mean_t logp_ref)^2 at each token of i.

    A length-normalised trajectory balance, with A as log-reward. log Z is learned: it is the value
    head's output at a rollout's first trained token, that is from the state that has read the
    prompt (the authors have a head of three layers on the mean of the prompt's states). w = pi /
    pi_old of the whole rollout, without gradient, held within 1 +- clip; the released code computes
    the clip and then doesn't use it (`clip=None`: bounded at e^+-20 only).
    With `sequence_mean_token_mean` the total is mean_i L_i.

    FlowRL, arXiv 2509.15207.

    Attributes:
        beta: Nats per unit of advantage.
        clip: The weight is held within 1 +- clip, or not at all.
    """

    beta: float = 15.0
    clip: float | None = 0.2

    def __call__(self, log_ratio: Tokens, evaluation: Evaluation, batch: Batch) -> TokenLoss:
        """Token losses [N, T].

        Raises:
            RecipeError: The evaluation has no values to read log Z from.
        """
        if evaluation.values is None:
            raise RecipeError("flow balance reads log Z from the value head: it needs values")
        weight = self.weights(evaluation.logp, batch)
        log_z = first_token(evaluation.values, batch)
        residual = self.residuals(evaluation.logp, log_z, batch).masked_fill(~batch.scored, 0.0)
        loss = (weight * residual.square())[:, None].expand_as(evaluation.logp)
        metrics = {"flow/weight": weight, "flow/residual": residual.abs()}
        spread = {name: v.detach()[:, None].expand_as(loss) for name, v in metrics.items()}
        return TokenLoss(loss, spread)

    def residuals(self, logp: Tokens, log_z: PerRollout, batch: Batch) -> PerRollout:
        """Violation of the balance by each row's rollout. [N]"""
        gap = logp - self.beta * batch["advantages"] - batch["logp_ref"]
        return log_z + rollout_mean(gap, batch)

    def weights(self, logp: Tokens, batch: Batch) -> PerRollout:
        """pi / pi_old of each row's rollout, a constant. [N]"""
        weight = bounded_exp(rollout_sum(logp.detach() - batch["logp_old"], batch))
        return weight if self.clip is None else weight.clamp(1 - self.clip, 1 + self.clip)


def first_token(values: Tokens, batch: Batch) -> PerRollout:
    """The value at the first trained token of each row's rollout; 0 for one without any. [N]

    The first row of a rollout is the first in the batch.
    """
    mask = batch.loss_mask
    begins = mask & (mask.cumsum(1) == 1)
    own = torch.where(begins, values, 0.0).sum(1)
    index = rollout_index(batch)
    rows = torch.arange(len(mask), device=mask.device)
    late = rows.masked_fill(~mask.any(1), len(mask))
    first = late.new_full((len(mask),), len(mask)).scatter_reduce(0, index, late, "amin")[index]
    return torch.cat([own, own.new_zeros(1)])[first]
