"""How strongly a teacher is followed: by the step of training, and by who needs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from polyopt.advantages.trajectories import success
from polyopt.batch import Batch
from polyopt.groups import group_max
from polyopt.parts import part


@part("selection.parts", provides={"teacher_weight"})
@dataclass
class AnnealedTeacher:
    """teacher_weight *= max(first - decay * step, last), step counting the batches so far.

    Adds the column `teacher_weight` [N]. KDRL, arXiv 2506.02208 (decay is ours).

    Attributes:
        first: Weight at the first step.
        decay: What it loses per step.
        last: Least weight.
        step: Batches seen.
    """

    first: float = 5e-3
    decay: float = 1e-5
    last: float = 1e-3
    step: int = field(default=0, init=False, repr=False)

    @property
    def weight(self) -> float:
        """The present weight."""
        return max(self.first - self.decay * self.step, self.last)

    def __call__(self, batch: Batch) -> Batch:
        """The batch with the present weight; the next batch gets the next."""
        weight = self.weight * _teacher_weight(batch)
        self.step += 1
        return batch.replace(teacher_weight=weight)

    def state_dict(self) -> dict[str, Any]:
        """The step."""
        return {"step": self.step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.step = state["step"]


@part("selection.parts", provides={"teacher_weight"})
def teach_failures(batch: Batch) -> Batch:
    """teacher_weight = 0 on right rollouts: only wrong ones follow the teacher.

    KDRL's response-level masking, arXiv 2506.02208.
    """
    wrong = (~success(batch)).to(batch.rewards.dtype)
    return batch.replace(teacher_weight=_teacher_weight(batch) * wrong)


@part("selection.parts", provides={"teacher_weight"})
def teach_unsolved(batch: Batch) -> Batch:
    """teacher_weight = 0 on prompts that some rollout solves.

    KDRL's group-level masking, arXiv 2506.02208.
    """
    solved = group_max(success(batch).to(batch.rewards.dtype), batch.group_index)
    return batch.replace(teacher_weight=_teacher_weight(batch) * (1 - solved))


def _teacher_weight(batch: Batch) -> Float[Tensor, " N"]:
    """The weight so far: 1 where no part has set one."""
    if "teacher_weight" in batch:
        return batch["teacher_weight"]
    return torch.ones_like(batch.rewards)
