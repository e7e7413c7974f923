"""Credit for turns: a tool call's own reward beside the outcome's."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from polyopt.batch import Batch
from polyopt.groups import group_z_score
from polyopt.parts import part
from polyopt.rollout_table import RolloutTable


def runs(labels: Int[Tensor, "N T"]) -> Int[Tensor, "N T"]:
    """Number of the run of equal labels in which each place stands, from 0 at the row's start."""
    change = labels[:, 1:] != labels[:, :-1]
    return torch.nn.functional.pad(change.long().cumsum(1), (1, 0))


@part(
    "advantages.estimator",
    needs={"turn_reward", "result_run"},
    min_rollouts=2,
)
@dataclass(frozen=True)
class TurnCredit:
    """A_t = z(r_outcome) + coefficient * z(r_turn) [t before the first tool result].

    z is the z-score within the group, std with n - 1. A rollout in which no tool answered has no
    turn to judge: all its tokens get z(r_turn + r_outcome). The outcome is the batch's reward.

    Columns [N]: `turn_reward`, how good the tool call was; `result_run`, where the first tool
    result stands, as the number of its run of sampled or of other tokens (the completion's first
    run is 0), -1 for none. MT-GRPO, arXiv 2505.11821; this is the two-turn case, which the
    authors' code implements.

    Attributes:
        coefficient: Weight of the turn's reward.
        eps: Added to the deviation.
    """

    coefficient: float = 1.0
    eps: float = 1e-4

    def __call__(self, advantages: Float[Tensor, "N T"], batch: Batch) -> Float[Tensor, "N T"]:
        """Advantages [N, T]."""
        turn, outcome, both = (row[:, None] for row in self.scores(batch))
        early, result = self.before_result(batch), batch["result_run"][:, None] > 0
        split = outcome + self.coefficient * turn * early
        return torch.where(result, split, both).masked_fill(~batch.mask, 0.0)

    def scores(self, batch: Batch) -> tuple[Float[Tensor, " N"], ...]:
        """Z-scores of the turn's reward, of the outcome, and of their sum."""
        table = RolloutTable.of(batch)
        turn = table.column(batch["turn_reward"]).to(table.rewards.dtype)
        rewards = (turn, table.rewards, turn + table.rewards)
        return tuple(table.rows(group_z_score(r, table.group, self.eps)) for r in rewards)

    def before_result(self, batch: Batch) -> Bool[Tensor, "N T"]:
        """Sampled tokens before the first tool result."""
        return (runs(batch.mask.long()) < batch["result_run"][:, None]) & batch.mask
