"""What the reference policy makes of each prompt, measured before training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from polyopt.batch import Batch, Prompt
from polyopt.parts import part


def static_values(
    rewards: Float[Tensor, " M"], prompt: Int[Tensor, " M"]
) -> tuple[Int[Tensor, " P"], Float[Tensor, " P"]]:
    """Prompt ids in order, and V of each: the mean reward of the reference policy's rollouts.

    PVPO, "Pre-Estimated Value-Based Policy Optimization for Agentic Reasoning", arXiv 2508.21104.
    """
    ids, index = torch.unique(prompt, return_inverse=True)
    counts = torch.bincount(index, minlength=len(ids))
    return ids, rewards.new_zeros(len(ids)).index_add(0, index, rewards) / counts


def prompt_action(accuracy: float) -> str:
    """What to do with a prompt, given the reference policy's mean accuracy on it.

    `"drop"` what it always solves, `"keep"` what it sometimes solves, and for what it never solves
    `"inject_ground_truth"`: one of the group's rollouts gives way to a verified trajectory of a
    larger model. PVPO, arXiv 2508.21104.
    """
    if accuracy >= 1:
        return "drop"
    return "keep" if accuracy > 0 else "inject_ground_truth"


@part("prompts.filters", needs={"metadata:static_value"})
@dataclass(frozen=True)
class NotMastered:
    """Visits only prompts that the reference policy doesn't always solve.

    Reads `static_value` in each prompt's metadata, the reference policy's mean reward on it. PVPO's
    group sampling without the injected trajectories, arXiv 2508.21104.

    Attributes:
        full: Reward of a solved prompt.
    """

    full: float = 1.0

    def keep(self, prompt: Prompt, draws: np.random.Generator) -> bool:
        """Whether to visit the prompt."""
        return prompt_action(float(prompt.metadata["static_value"]) / self.full) != "drop"

    def observe(self, batch: Batch) -> None:
        """Nothing to learn: the accuracies are fixed."""

    def state_dict(self) -> dict[str, Any]:
        """No memory."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """No memory."""
