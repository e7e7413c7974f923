"""What the reference policy makes of each prompt, measured before training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyopt.batch import Batch, Prompt
from polyopt.parts import part


def prompt_action(accuracy: float) -> str:
    """What to do with a prompt, given the reference policy's mean accuracy on it.

    `"drop"` what it always solves, `"keep"` what it sometimes solves, and for what it never solves
    `"inject_ground_truth"`: one of the group's rollouts gives way to a verified trajectory of a
    larger model. PVPO, arXiv 2508.21104.
    """
    if accuracy >= 1:
        return "drop"
    return "keep" if accuracy > 0 else "inject_ground_truth"


@part("prompts.filters", needs={"metadata:reference_rewards"})
@dataclass(frozen=True)
class NotMastered:
    """Visits only prompts that the reference policy doesn't always solve.

    Reads the list `reference_rewards` in each prompt's metadata, rewards of the reference policy's
    completions. PVPO's group sampling without the injected trajectories, arXiv 2508.21104.

    Attributes:
        full: Reward from which a completion is right.
    """

    full: float = 1.0

    def keep(self, prompt: Prompt, draws: np.random.Generator) -> bool:
        """Whether to visit the prompt."""
        right = [reward >= self.full for reward in prompt.metadata["reference_rewards"]]
        return prompt_action(sum(right) / max(len(right), 1)) != "drop"

    def observe(self, batch: Batch) -> None:
        """Nothing to learn: the accuracies are fixed."""

    def state_dict(self) -> dict[str, Any]:
        """No memory."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """No memory."""
