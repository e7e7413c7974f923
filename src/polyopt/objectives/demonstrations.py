"""Losses on completions that the policy didn't write by itself: demonstrations and hinted rollouts.

Column `demonstration` [N]: 1 on rows that somebody else wrote (a stronger model, a reference
solution), 0 on the policy's own. Such a row joins its prompt's group, its tokens are in the mask,
and its reward is that of its answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from polyopt.advantages.trajectories import PerRollout, Trajectories
from polyopt.batch import Batch
from polyopt.groups import group_sum
from polyopt.objectives.protocol import Evaluation, Loss, TokenLoss, Tokens
from polyopt.objectives.ratios import log_ratio
from polyopt.objectives.surrogates import clipped_loss, drift
from polyopt.parts import part


@part("objective.surrogate", needs={"advantages", "demonstration", "logp_old"})
@dataclass(frozen=True)
class MixedPolicySurrogate:
    """-A rho on the policy's own tokens; -A * 2 pi / (old + (old + 1) / 2) * sg(1 - pi)^gamma on
    demonstrated ones.

    Who wrote a demonstration with which probability is unknown: its behaviour is taken half to be
    `old` and half a policy between `old` and certainty, so the ratio never exceeds 4. The last
    factor turns to tokens that the policy finds unlikely.

    RL-PLUS, arXiv 2508.00222.

    Attributes:
        gamma: Exponent of the exploration weight.
        clip: Half-width of the clip range of the policy's own ratios; None (the released script)
            doesn't clip.
    """

    gamma: float = 0.5
    clip: float | None = None

    def __call__(self, log_ratio: Tokens, evaluation: Evaluation, batch: Batch) -> TokenLoss:
        """Token losses [N, T]; logs the ratio of demonstrated tokens."""
        advantages = batch["advantages"]
        low, high = (0.0, torch.inf) if self.clip is None else (1 - self.clip, 1 + self.clip)
        own = clipped_loss(log_ratio, advantages, low, high)
        shown = (batch["demonstration"] > 0)[:, None]
        probability = evaluation.logp.clamp(max=0.0).exp()
        old = batch["logp_old"].clamp(max=0.0).exp()
        ratio = 2 * probability / (old + (old + 1) / 2)
        loss = -advantages * ratio * (1 - probability.detach()) ** self.gamma
        metrics = {"demonstration/ratio": torch.where(shown, ratio, torch.nan)}
        return TokenLoss(torch.where(shown, loss, own.loss), metrics | drift(log_ratio))


@part("objective.surrogate", needs={"advantages", "demonstration"})
@dataclass(frozen=True)
class GroupAlignment:
    """-mean over prompts of (1 / G) sum_i [A_i E_i + imitation A_y I + alignment A_i (E_i - I)].

    E_i = mean_t logp of the policy's own rollout i of G, I the same of the prompt's demonstration y
    (the mean over several), A their advantages. No ratio, no clip. A prompt without a demonstration
    keeps A_i E_i alone.

    GRAO, "Learning to Align, Aligning to Learn", arXiv 2508.07750, eq. 3.

    Attributes:
        imitation: beta, weight of the demonstration.
        alignment: lambda, weight of the difference to it.
    """

    imitation: float = 0.5
    alignment: float = 0.6
    aggregates: ClassVar[bool] = True
    coupled: ClassVar[bool] = True

    def __call__(self, log_ratio: Tokens, evaluation: Evaluation, batch: Batch) -> Loss:
        """Scalar loss."""
        rollouts = Trajectories.of(batch)
        likelihood = rollouts.mean(evaluation.logp)
        credit = rollouts.credit * rollouts.weight(likelihood)
        shown = (rollouts.pick(batch["demonstration"]) > 0).to(likelihood.dtype)
        own = 1 - shown
        exploration = own * credit * likelihood
        imitation = self.imitation * shown * credit * likelihood
        target = _mean_of(likelihood, shown, rollouts)
        known = group_sum(shown, rollouts.index) > 0
        gap = torch.where(known, own * credit * (likelihood - target), 0.0)
        size, demonstrations = (group_sum(k, rollouts.index).clamp(min=1) for k in (own, shown))
        terms = (exploration + self.alignment * gap) / size + imitation / demonstrations
        return Loss(
            -terms.sum() / max(rollouts.groups, 1), {"likelihood": rollouts.spread(likelihood)}
        )


def _mean_of(values: PerRollout, members: PerRollout, rollouts: Trajectories) -> PerRollout:
    """Mean over the members of each group, given to all its rollouts; 0 without any."""
    count = group_sum(members, rollouts.index).clamp(min=1)
    return group_sum(values * members, rollouts.index) / count


@part("objective.ratio", needs={"guided", "logp_old", "logp_sampler"})
def hinted_ratio(logp: Tokens, batch: Batch) -> Tokens:
    """Each token its own ratio, to the context it was sampled in.

    log rho = log pi(o | q) - log old(o | q, hint).

    On hinted rows (column `guided` [N] is 1) the old policy is the sampler with the hint in its
    prompt; the row itself trains without the hint. Other rows have the ordinary ratio.

    Guide, arXiv 2506.13923 (reconstructed from the abstract).
    """
    hinted = (batch["guided"] > 0)[:, None]
    sampled = (logp - batch["logp_sampler"]).masked_fill(~batch.loss_mask, 0.0)
    return torch.where(hinted, sampled, log_ratio(logp, batch))
