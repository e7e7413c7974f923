"""Preferences: pairs of rollouts in the order of their levels, by a Bradley-Terry likelihood."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn.functional import logsigmoid

from polyopt.advantages.trajectories import PerRollout, Trajectories
from polyopt.batch import Batch
from polyopt.objectives.protocol import Evaluation, Loss, Tokens
from polyopt.parts import part


@part("objective.surrogate", needs={"level", "logp_ref"}, min_rollouts=2)
@dataclass(frozen=True)
class PreferencePairs:
    """Mean over all pairs of -log sigmoid(c beta (g_i - g_j)), level_i better than level_j.

    g = mean_t (logp - logp_ref). Column `level` [N]: 1 is best (`preference_levels`); c is the
    anisotropy for pairs with a level 1, else 1. Pairs are those of one prompt, pooled over prompts,
    so a large mixed group weighs more. A batch without any pair: mean over rollouts of
    -log sigmoid(+-g), + for level 1.

    TRPA, "Trust Region Preference Approximation". Goes with `StepPenalty` to the old policy.

    Attributes:
        beta: Scale of the preference.
        anisotropy: c of the pairs that level 1 wins.
    """

    beta: float = 0.1
    anisotropy: float = 2.5
    aggregates: ClassVar[bool] = True
    coupled: ClassVar[bool] = True

    def __call__(self, log_ratio: Tokens, evaluation: Evaluation, batch: Batch) -> Loss:
        """Scalar loss."""
        rollouts = Trajectories.of(batch)
        gap = rollouts.mean(evaluation.logp - batch["logp_ref"])
        level = rollouts.pick(batch["level"])
        better, worse = pairs(level, rollouts)
        metrics = {"preference/gap": rollouts.spread(gap)}
        if len(better) == 0:
            return Loss(self._lone_kinds(gap, level), metrics)
        scale = torch.where(level[better] == 1, self.anisotropy, 1.0) * self.beta
        likelihood = logsigmoid(scale * (gap[better] - gap[worse]))
        return Loss(-likelihood.mean(), metrics)

    def _lone_kinds(self, gap: PerRollout, level: Tensor) -> Tensor:
        """The loss of a batch in which no prompt has two levels."""
        sign = torch.where(level == 1, 1.0, -1.0)
        return -logsigmoid(sign * gap).sum() / max(len(gap), 1)


def pairs(level: Tensor, rollouts: Trajectories) -> tuple[Tensor, Tensor]:
    """Better and worse rollout of every pair of one prompt with different levels."""
    index = rollouts.index
    beats: Bool[Tensor, "R R"] = (index[:, None] == index) & (level[:, None] < level)
    better, worse = beats.nonzero(as_tuple=True)
    return better, worse
