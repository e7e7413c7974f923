"""The prompts field of a recipe."""

from __future__ import annotations

from dataclasses import dataclass, field

from polyopt.prompts.protocol import Allocation, PromptFilter, PromptSource
from polyopt.prompts.sources import ShuffledEpochs


@dataclass(frozen=True)
class Prompts:
    """The prompts field of a recipe.

    Attributes:
        source: Order of the training prompts.
        filters: Chain of filters asked in order; a prompt is visited if all keep it.
        allocation: Rollouts per prompt; None gives each `rollouts.per_prompt`.
        per_step: Prompts per training step.
    """

    source: PromptSource = field(default_factory=ShuffledEpochs)
    filters: tuple[PromptFilter, ...] = ()
    allocation: Allocation | None = None
    per_step: int = 16
