"""Supervised losses on outcomes: the policy's own log-ratios classify right and wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from polyopt.advantages.trajectories import PerRollout, Trajectories
from polyopt.batch import Batch
from polyopt.divergences import straight_through
from polyopt.objectives.protocol import Evaluation, Loss, TokenLoss, Tokens
from polyopt.objectives.surrogates import drift
from polyopt.parts import part


class Proxy(Protocol):
    """What the policy itself says a rollout is worth."""

    def __call__(self, logp: Tokens, rollouts: Trajectories) -> PerRollout: ...


class Comparison(Protocol):
    """A rollout's worth relative to the others of its prompt."""

    def __call__(self, worth: PerRollout, rollouts: Trajectories) -> PerRollout: ...


@dataclass(frozen=True)
class Movement:
    """sum_t (logp - logp_old)."""

    def __call__(self, logp: Tokens, rollouts: Trajectories) -> PerRollout:
        """Nats that each rollout's log-probability has moved."""
        return rollouts.sum(logp - rollouts.batch["logp_old"])


@dataclass(frozen=True)
class MeanLogProb:
    """mean_t logp."""

    def __call__(self, logp: Tokens, rollouts: Trajectories) -> PerRollout:
        """Mean log-probability of each rollout's tokens."""
        return rollouts.mean(logp)


@dataclass(frozen=True)
class AgainstOthers:
    """p_i less the mean of the prompt's other rollouts; 0 for a group of one."""

    def __call__(self, worth: PerRollout, rollouts: Trajectories) -> PerRollout:
        """Differentiable through every rollout of the group."""
        size = rollouts.size(worth)
        return size / (size - 1).clamp(min=1) * rollouts.centred(worth)


@dataclass(frozen=True)
class InDeviations:
    """(p_i - mean_g) / (std_g + eps), std with n - 1."""

    eps: float = 1e-6

    def __call__(self, worth: PerRollout, rollouts: Trajectories) -> PerRollout:
        """Differentiable through mean and deviation."""
        return rollouts.centred(worth) / (rollouts.group_std(worth) + self.eps)


@part("objective.surrogate", needs={"logp_old"}, min_rollouts=2)
@dataclass(frozen=True)
class OutcomeClassifier:
    """Mean over rollouts of weight_i * cross-entropy(sigmoid(psi_i), right_i).

    psi_i compares beta times the proxy of rollout i with those of its prompt: sigmoid(psi) is an
    implicit critic. On-policy psi = 0 and the gradient is that of 1/2 - right, with the others as
    baseline. Weights are those that selection gave (`ClassBalance`).

    PACS, arXiv 2509.02522.

    Attributes:
        beta: Logits per unit of the proxy.
        proxy: What the policy says a rollout is worth.
        comparison: How it is compared within the prompt.
    """

    beta: float = 1.0
    proxy: Proxy = field(default_factory=Movement)
    comparison: Comparison = field(default_factory=AgainstOthers)
    aggregates: ClassVar[bool] = True
    coupled: ClassVar[bool] = True

    def __call__(self, log_ratio: Tokens, evaluation: Evaluation, batch: Batch) -> Loss:
        """Scalar loss."""
        rollouts = Trajectories.of(batch)
        scores = self.scores(evaluation.logp, rollouts)
        loss = binary_cross_entropy_with_logits(
            scores,
            rollouts.right.to(scores.dtype),
            weight=rollouts.weight(scores).detach(),
            reduction="sum",
        )
        return Loss(loss / max(len(rollouts), 1), {"critic/score": rollouts.spread(scores)})

    def scores(self, logp: Tokens, rollouts: Trajectories) -> PerRollout:
        """psi: the logit that each rollout is right."""
        return self.comparison(self.beta * self.proxy(logp, rollouts), rollouts)


@part("objective.surrogate", needs={"advantages", "success_rate", "logp_old"})
@dataclass(frozen=True)
class NegativeAware:
    """L = |A| * -log r where A > 0, |A| * -log g where A < 0, with g = (1 - q r) / (1 - q).

    r is the ratio (a log-ratio above 10 gets no gradient), q the column `success_rate` [N], and g
    the ratio of the implied policy of wrong answers. By value g is at least `floor`; its gradient
    goes on below. The size of A is a weight, its sign says right or wrong (`SuccessRateWeight`).

    NFT, arXiv 2505.18116.

    Attributes:
        floor: Least g, above 0; at 1 the loss of a wrong answer is never above 0.
    """

    floor: float = 1.0
    BOUND: ClassVar[float] = 10.0

    def __call__(self, log_ratio: Tokens, evaluation: Evaluation, batch: Batch) -> TokenLoss:
        """Token losses [N, T]; logs the share of wrong answers' tokens at the floor."""
        advantages, q = batch["advantages"], batch["success_rate"][:, None]
        bounded = log_ratio.clamp(max=self.BOUND)
        implied = (1 - q * bounded.exp()) / (1 - q)
        held = implied.detach().clamp(min=self.floor)
        negative = -straight_through(held.log(), implied / held)
        loss = advantages.abs() * torch.where(advantages > 0, -bounded, negative)
        at_floor = (advantages < 0) & (implied < self.floor)
        metrics = {"nft/floor": at_floor.to(loss.dtype)} | drift(log_ratio)
        return TokenLoss(loss, metrics)
