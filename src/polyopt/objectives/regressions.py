"""Regressions: how far a rollout's log-probability has moved is fitted to what it is worth.

A KL-regularised optimum obeys beta log(pi / pi_anchor) = reward - beta log Z. Differences between
the rollouts of a prompt don't know Z, so every loss here but the last compares

    beta (move_i - mean_g move)   with   credit_i - mean_g credit

where move_i = sum_t (logp - anchor) over a rollout's trained tokens (a sum, not a mean) and
credit_i is the mean of its tokens' advantages. They differ in the anchor, the weight of a rollout
and the scale. Since k sum_i (x_i - mean x)^2 is the sum of (x_i - x_j)^2 over the pairs of a group
of k, regressions on pairs and on group variance are one thing: from the same anchor REBEL, GVPO,
TBA and CoPG have the same gradient up to a factor per group and the choice of beta.

No ratio, no clip; a group of one gives 0. All need whole groups in one batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from polyopt.advantages.trajectories import PerRollout, Trajectories
from polyopt.batch import Batch
from polyopt.levels import rollout_mean, rollout_sum
from polyopt.objectives.partition import log_partition
from polyopt.objectives.protocol import Evaluation, Loss, TokenLoss, Tokens
from polyopt.parts import part


def movement(logp: Tokens, anchor: Tokens, rollouts: Trajectories) -> PerRollout:
    """sum_t (logp - anchor) over each rollout's trained tokens, in nats."""
    return rollouts.sum(logp - anchor)


def squares(weight: Tensor, residual: PerRollout, rollouts: Trajectories) -> Loss:
    """sum_i weight_i residual_i^2, times the weights that selection gave."""
    loss = (weight * rollouts.weight(residual) * residual.square()).sum()
    return Loss(loss, {"regression/error": rollouts.spread(residual.abs())})


@part("objective.surrogate", needs={"advantages", "logp_old"}, min_rollouts=2)
@dataclass(frozen=True)
class RelativeRewardRegression:
    """Mean over pairs of one prompt of ((move_i - move_j) - eta (R_i - R_j))^2, move from pi_old.

    On-policy the gradient is REINFORCE with the other rollout as baseline. The paper divides the
    movement by eta where its code multiplies the reward: same minimum, gradient 1/eta^2 as large;
    here as in the code. The paper has two rollouts a prompt; of more, all pairs count.

    REBEL, arXiv 2404.16767.

    Attributes:
        eta: Nats of movement per unit of reward.
    """

    eta: float = 1.0
    aggregates: ClassVar[bool] = True
    coupled: ClassVar[bool] = True

    def __call__(self, log_ratio: Tokens, evaluation: Evaluation, batch: Batch) -> Loss:
        """Scalar loss."""
        rollouts = Trajectories.of(batch)
        move = movement(evaluation.logp, batch["logp_old"], rollouts)
        residual = rollouts.centred(move) - self.eta * rollouts.deviation(rollouts.credit)
        size = rollouts.size(move)
        pairs = ((size - 1) / 2).sum().clamp(min=1)
        return squares(size / pairs, residual, rollouts)


@part("objective.surrogate", needs={"advantages", "logp_old"}, min_rollouts=2)
@dataclass(frozen=True)
class GroupVarianceRegression:
    """Mean over prompts of sum_i (beta (move_i - mean move) - (R_i - mean R))^2 / 2(k - 1).

    On-policy the gradient is REINFORCE with the group's mean as baseline, times beta / (k - 1). The
    authors' code adds groups up where this takes their mean.

    GVPO, arXiv 2504.19599.

    Attributes:
        beta: Reward per nat of movement from pi_old.
    """

    beta: float = 0.1
    aggregates: ClassVar[bool] = True
    coupled: ClassVar[bool] = True

    def __call__(self, log_ratio: Tokens, evaluation: Evaluation, batch: Batch) -> Loss:
        """Scalar loss."""
        rollouts = Trajectories.of(batch)
        implicit = self.beta * movement(evaluation.logp, batch["logp_old"], rollouts)
        residual = rollouts.centred(implicit) - rollouts.deviation(rollouts.credit)
        freedom = (rollouts.size(implicit) - 1).clamp(min=1)
        return squares(1 / (2 * freedom * max(rollouts.groups, 1)), residual, rollouts)


@part("objective.surrogate", needs={"advantages", "logp_ref"}, min_rollouts=2)
@dataclass(frozen=True)
class TrajectoryBalance:
    """Mean over rollouts of (log Z + move_i - R_i / beta)^2, move from the reference policy.

    log Z is the VarGrad estimate of each prompt (`partition.log_partition`), a constant. Holds for
    rollouts sampled by any policy, however stale. Equal rewards still pull towards the reference.

    TBA, arXiv 2503.18929.

    Attributes:
        beta: Strength of the KL regularisation (GSM8K script: 0.014).
    """

    beta: float = 0.014
    aggregates: ClassVar[bool] = True
    coupled: ClassVar[bool] = True

    def __call__(self, log_ratio: Tokens, evaluation: Evaluation, batch: Batch) -> Loss:
        """Scalar loss."""
        rollouts = Trajectories.of(batch)
        move = movement(evaluation.logp, batch["logp_ref"], rollouts)
        worth = rollouts.credit / self.beta
        residual = log_partition(move, worth, rollouts) + move - worth
        return squares(torch.ones_like(move) / max(len(rollouts), 1), residual, rollouts)


@part("objective.surrogate", needs={"advantages", "logp_ref"}, min_rollouts=2)
@dataclass(frozen=True)
class ContrastiveGradient:
    """Mean over prompts of sum_{i>j} (s_i - s_j)^2 / (k - 1), s_i = R_i - beta move_i.

    The move is from the reference policy, and each rollout's baseline is the others' regularised
    reward. The TBA loss times beta^2 k / (k - 1), with another mean over prompts.

    CoPG, arXiv 2406.19185; k rollouts as in the Command A report.

    Attributes:
        beta: Strength of the KL regularisation; the gradient is proportional to it.
    """

    beta: float = 0.1
    aggregates: ClassVar[bool] = True
    coupled: ClassVar[bool] = True

    def __call__(self, log_ratio: Tokens, evaluation: Evaluation, batch: Batch) -> Loss:
        """Scalar loss."""
        rollouts = Trajectories.of(batch)
        residual = rollouts.centred(self.regularised_rewards(evaluation.logp, rollouts))
        size = rollouts.size(residual)
        weight = size / (size - 1).clamp(min=1) / max(rollouts.groups, 1)
        return squares(weight, residual, rollouts)

    def regularised_rewards(self, logp: Tokens, rollouts: Trajectories) -> PerRollout:
        """R_i - beta * move_i."""
        move = movement(logp, rollouts.batch["logp_ref"], rollouts)
        return rollouts.credit - self.beta * move


@part("objective.surrogate", needs={"advantages", "logp_old"}, min_rollouts=2)
@dataclass(frozen=True)
class StandardisedRegression:
    """Mean over rollouts of (A_i - (move_i - mean_g move) / (std_g move + eps))^2.

    The move is from pi_old. The prediction has no scale: the loss says in which direction the
    policy moves, and only a KL penalty says how far. At pi = pi_old the deviation is 0 and the
    gradient 1 / eps times as large as elsewhere, so an on-policy step rests on the clipping of its
    norm.

    Reg-GRPO, in "DeepVideo-R1", arXiv 2506.07464 (reconstructed: n - 1 and eps are GRPO's).

    Attributes:
        eps: Added to the deviation.
    """

    eps: float = 1e-6
    aggregates: ClassVar[bool] = True
    coupled: ClassVar[bool] = True

    def __call__(self, log_ratio: Tokens, evaluation: Evaluation, batch: Batch) -> Loss:
        """Scalar loss."""
        rollouts = Trajectories.of(batch)
        predicted = self.predicted(evaluation.logp, rollouts)
        residual = rollouts.credit - predicted
        return squares(torch.ones_like(residual) / max(len(rollouts), 1), residual, rollouts)

    def predicted(self, logp: Tokens, rollouts: Trajectories) -> PerRollout:
        """The advantage that the policy's movement implies."""
        move = movement(logp, rollouts.batch["logp_old"], rollouts)
        return rollouts.centred(move) / (self.scale(move, rollouts) + self.eps)

    def scale(self, move: PerRollout, rollouts: Trajectories) -> PerRollout:
        """Deviation within the group, with gradient."""
        return rollouts.group_std(move)


@part("objective.surrogate", needs={"advantages", "logp_old"}, min_rollouts=2)
@dataclass(frozen=True)
class FixedScaleRegression(StandardisedRegression):
    """`StandardisedRegression` with no gradient through the deviation of the movement."""

    def scale(self, move: PerRollout, rollouts: Trajectories) -> PerRollout:
        """Deviation within the group, as a constant."""
        return rollouts.group_std(move.detach())


@part("objective.surrogate", needs={"advantages", "logp_ref"})
@dataclass(frozen=True)
class OptimalAdvantageRegression:
    """L_i = (beta move_i - A_i)^2 at each token of rollout i, move from the reference policy.

    A_i should be an advantage over the optimal value V* (`advantages.optimal_value`), which takes
    the place of log Z, so that one rollout a prompt is enough. With the mean over rollouts of token
    means (`sequence_mean_token_mean`) the total is mean_i L_i.

    A*-PO, arXiv 2505.20686.

    Attributes:
        beta: beta_2, reward per nat of movement.
    """

    beta: float = 1e-3

    def __call__(self, log_ratio: Tokens, evaluation: Evaluation, batch: Batch) -> TokenLoss:
        """Token losses [N, T]."""
        residual = self.residuals(evaluation.logp, batch).masked_fill(~batch.scored, 0.0)
        loss = residual.square()[:, None].expand_as(evaluation.logp)
        return TokenLoss(loss, {"regression/error": residual.abs()[:, None].expand_as(loss)})

    def residuals(self, logp: Tokens, batch: Batch) -> Tensor:
        """beta * move - A of each row's rollout. [N]"""
        move = rollout_sum(logp - batch["logp_ref"], batch)
        return self.beta * move - rollout_mean(batch["advantages"], batch)
