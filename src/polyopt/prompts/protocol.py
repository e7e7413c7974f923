"""What a prompt source, a prompt filter and an allocation are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from polyopt.batch import Batch, Prompt


@dataclass(frozen=True)
class PromptRequest:
    """One visit to a prompt.

    Attributes:
        prompt: The problem.
        group: Id of this visit, unique in the run: the group id of its rollouts.
        rollouts: How many rollouts to sample.
        occurrence: 0 for the first visit to this prompt within a step, 1 for the second, ...
    """

    prompt: Prompt
    group: int
    rollouts: int
    occurrence: int = 0


class PromptSource(Protocol):
    """An order in which a task's prompts come up; has memory."""

    def next_index(self, size: int, seed: int) -> int:
        """Index of the next of `size` training prompts; `seed` is the run's."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class PromptFilter(Protocol):
    """Decides before any rollout whether a prompt is worth a visit; has memory."""

    def keep(self, prompt: Prompt, draws: np.random.Generator) -> bool:
        """Whether to visit the prompt now."""

    def observe(self, batch: Batch) -> None:
        """Learn from all scored rollouts of a step."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Allocation(Protocol):
    """How many rollouts each of the proposed prompts gets."""

    def __call__(self, prompts: Sequence[Prompt], per_prompt: int) -> Sequence[int]: ...
