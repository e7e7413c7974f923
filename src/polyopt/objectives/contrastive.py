"""Contrasts between right and wrong rollouts of a prompt, and the constraint they come with.

    J = mean over prompts of  sum_{i right} omega_i s_i  -  tau log mean_{j wrong} exp(s_j / tau)

with a score s of each rollout and weights omega that add up to 1. A prompt without both kinds gives
0 and still counts in the mean. The soft mean looks at the wrong rollouts with the highest scores;
tau = inf makes it their plain mean. The authors' codes report another value for the same gradient
(`value_of_code`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from polyopt.advantages.soft_means import group_log_softmax, group_soft_mean
from polyopt.advantages.statistics import masked_mean
from polyopt.advantages.trajectories import PerRollout, Trajectories
from polyopt.batch import Batch
from polyopt.divergences import Divergence, ForwardKL
from polyopt.groups import group_sum
from polyopt.objectives.protocol import Evaluation, Loss, TokenLoss, Tokens
from polyopt.objectives.surrogates import bounded_ratio
from polyopt.parts import part


@part("objective.surrogate", needs={"logp_old"}, min_rollouts=2)
@dataclass(frozen=True)
class LikelihoodContrast:
    """Loss -J with s_i = mean_t logp and equal weights of the right rollouts.

    DisCO with the log-likelihood score, arXiv 2505.12366; `tau=inf` is its DisCO-b. Goes with
    `KLConstraint`.

    Attributes:
        tau: Temperature over the wrong rollouts.
    """

    tau: float = 10.0
    aggregates: ClassVar[bool] = True
    coupled: ClassVar[bool] = True

    def __call__(self, log_ratio: Tokens, evaluation: Evaluation, batch: Batch) -> Loss:
        """Scalar loss."""
        rollouts = Trajectories.of(batch)
        scores = self.scores(evaluation.logp, rollouts)
        gain = self.gains(scores, rollouts).sum() / max(rollouts.groups, 1)
        return Loss(-gain, {"contrast/score": rollouts.spread(scores)})

    def scores(self, logp: Tokens, rollouts: Trajectories) -> PerRollout:
        """Mean log-probability of each rollout's tokens."""
        return rollouts.mean(logp)

    def log_weights(self, rollouts: Trajectories, like: Tensor) -> PerRollout:
        """Log of each right rollout's weight, up to a constant per prompt."""
        return torch.zeros(len(rollouts), dtype=like.dtype, device=like.device)

    def weights(self, rollouts: Trajectories, like: Tensor) -> PerRollout:
        """omega: adds up to 1 over the right rollouts of each prompt, 0 on the wrong ones."""
        log_weight = torch.where(rollouts.right, self.log_weights(rollouts, like), -torch.inf)
        return torch.where(
            rollouts.right & contrasted(rollouts),
            group_log_softmax(log_weight, rollouts.index).exp(),
            0.0,
        )

    def gains(self, scores: PerRollout, rollouts: Trajectories) -> PerRollout:
        """Each right rollout's share of J, before the mean over prompts."""
        hardest = group_soft_mean(scores, rollouts.index, self.tau, ~rollouts.right)
        share = self.weights(rollouts, scores) * rollouts.weight(scores)
        return share * (scores - hardest)

    def value_of_code(self, loss: Tensor, scores: PerRollout, batch: Batch) -> Tensor:
        """What the authors' code reports: tau in place of each soft mean, the same gradient."""
        rollouts = Trajectories.of(batch)
        if math.isinf(self.tau):
            return loss
        hardest = group_soft_mean(scores, rollouts.index, self.tau, ~rollouts.right)
        excess = self.weights(rollouts, scores) * (self.tau - hardest)
        return loss + excess.sum() / max(rollouts.groups, 1)


@part("objective.surrogate", needs={"logp_old"}, min_rollouts=2)
@dataclass(frozen=True)
class RatioContrast(LikelihoodContrast):
    """`LikelihoodContrast` with s_i = mean_t pi / pi_old.

    DisCO with the likelihood-ratio score, arXiv 2505.12366.

    Attributes:
        tau: Temperature over the wrong rollouts.
    """

    tau: float = 1.0

    def scores(self, logp: Tokens, rollouts: Trajectories) -> PerRollout:
        """Mean ratio of each rollout's tokens."""
        return rollouts.mean(bounded_ratio(logp - rollouts.batch["logp_old"]))


@part("objective.surrogate", needs={"max_tokens"}, min_rollouts=2)
@dataclass(frozen=True)
class LengthTiltedContrast(LikelihoodContrast):
    """`LikelihoodContrast` with omega_i ~ exp((1 - length_i / limit) / temperature).

    Short right rollouts weigh more, and length never reaches the wrong ones. `limit` is the run's
    completion limit (column `max_tokens`); the authors' code takes the padded width of the batch.

    DRPO, arXiv 2510.04474.

    Attributes:
        tau: Temperature over the wrong rollouts.
        temperature: lambda; large values make the weights equal.
    """

    temperature: float = 0.1

    def log_weights(self, rollouts: Trajectories, like: Tensor) -> PerRollout:
        """(1 - length / limit) / lambda."""
        limit = rollouts.pick(rollouts.batch["max_tokens"]).to(like.dtype)
        return (1 - rollouts.tokens(rollouts.batch.mask.to(like.dtype)) / limit) / self.temperature


def contrasted(rollouts: Trajectories) -> Bool[Tensor, " R"]:
    """Rollouts of prompts that have both right and wrong ones."""
    right = rollouts.right.to(torch.float64)
    wins, losses = (group_sum(kind, rollouts.index) for kind in (right, 1 - right))
    return (wins > 0) & (losses > 0)


@part("objective.kl", needs={"logp_old"})
@dataclass(frozen=True)
class KLConstraint:
    """coefficient * sg([KL - delta]_+) * KL over the batch: nothing while KL(old || pi) <= delta.

    Its gradient is that of the squared hinge coefficient / 2 * [KL - delta]_+^2, and the mean over
    tokens is that of the whole batch. KL is estimated by D(log rho) at the old policy's tokens:
    `ForwardKL` ("kl" in the code, may be negative) or `UnnormalizedForwardKL` ("low_var_kl").
    With `token_mean` as aggregation.

    DisCO, arXiv 2505.12366; DRPO, arXiv 2510.04474.

    Attributes:
        delta: KL that is free, in nats per token.
        coefficient: beta.
        divergence: D.
    """

    delta: float = 1e-4
    coefficient: float = 1e3
    divergence: Divergence = field(default_factory=ForwardKL)
    coupled: ClassVar[bool] = True

    def __call__(self, evaluation: Evaluation, batch: Batch) -> TokenLoss:
        """Token losses [N, T]; logs the divergence."""
        value = self.divergence(evaluation.logp - batch["logp_old"])
        excess = (self.kl(evaluation.logp, batch).detach() - self.delta).clamp(min=0)
        return TokenLoss(excess * value, {"kl_old": value})

    def kl(self, logp: Tokens, batch: Batch) -> Float[Tensor, ""]:
        """Mean divergence of the batch's trained tokens, in nats."""
        return masked_mean(self.divergence(logp - batch["logp_old"]), batch.loss_mask)


@part("objective.kl", needs={"logp_old"})
@dataclass(frozen=True)
class StepPenalty:
    """coefficient * D(log rho): `StepDivergence` for losses that define their own reduction.

    Attributes:
        coefficient: Factor of the penalty.
        divergence: D.
    """

    coefficient: float = 1e-3
    divergence: Divergence = field(default_factory=ForwardKL)

    def __call__(self, evaluation: Evaluation, batch: Batch) -> TokenLoss:
        """Token losses [N, T]; logs the divergence."""
        value = self.divergence(evaluation.logp - batch["logp_old"])
        return TokenLoss(value, {"kl_old": value})
