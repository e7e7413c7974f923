"""The updates field of a recipe."""

from __future__ import annotations

from dataclasses import dataclass, field

from polyopt.updates.optimizers import AdamW, Constant, Schedule
from polyopt.updates.protocol import ReferenceWeights, UpdateRule
from polyopt.updates.rules import GradientSteps


@dataclass(frozen=True)
class Updates:
    """The updates field of a recipe.

    Attributes:
        rule: How optimizer steps are taken on a batch of rollouts.
        optimizer: The optimizer and its numbers.
        schedule: Course of the learning rate.
        reference: How the frozen reference is made of the policy and a second model; None takes
            the policy as it is when training starts.
        micro_tokens: Most tokens (padding included) that go through the model at once; memory
            depends on it, the result doesn't.
    """

    rule: UpdateRule = field(default_factory=GradientSteps)
    optimizer: AdamW = field(default_factory=AdamW)
    schedule: Schedule = field(default_factory=Constant)
    reference: ReferenceWeights | None = None
    micro_tokens: int = 16384
