"""The policy as a distribution over the rollouts of a prompt (Plackett-Luce)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from polyopt.advantages.soft_means import group_log_softmax
from polyopt.advantages.trajectories import PerRollout, Trajectories
from polyopt.batch import Batch
from polyopt.objectives.protocol import Evaluation, Loss, Tokens
from polyopt.parts import part


@part("objective.surrogate", needs={"advantages", "logp_ref"}, min_rollouts=2)
@dataclass(frozen=True)
class TrajectorySoftmax:
    """-(sum_i w_i A_i + entropy * H(w) - kl * KL(w || w_ref)), mean over prompts.

    w is the softmax over a prompt's rollouts of their summed log-probabilities, w_ref the same
    under the reference policy. The gradient of the first term is w_i (A_i - sum_j w_j A_j): the
    softmax centres the rewards itself. Sums of many tokens differ by many nats, so w sits on few
    rollouts.

    HAEPO, arXiv 2508.18884 (reconstructed from the abstract; coefficients are ours).

    Attributes:
        entropy: Weight of the entropy of w.
        kl: Weight of the divergence from w_ref.
    """

    entropy: float = 0.05
    kl: float = 0.1
    aggregates: ClassVar[bool] = True
    coupled: ClassVar[bool] = True

    def __call__(self, log_ratio: Tokens, evaluation: Evaluation, batch: Batch) -> Loss:
        """Scalar loss."""
        rollouts = Trajectories.of(batch)
        log_w = log_weights(evaluation.logp, rollouts)
        log_ref = log_weights(batch["logp_ref"], rollouts)
        worth = rollouts.credit - self.entropy * log_w - self.kl * (log_w - log_ref)
        gain = (rollouts.weight(log_w) * log_w.exp() * worth).sum()
        metrics = {"softmax/weight": rollouts.spread(log_w.exp())}
        return Loss(-gain / max(rollouts.groups, 1), metrics)


def log_weights(logp: Tokens, rollouts: Trajectories) -> PerRollout:
    """Log of each rollout's share in its prompt's softmax of summed log-probabilities."""
    return group_log_softmax(rollouts.sum(logp), rollouts.index)
