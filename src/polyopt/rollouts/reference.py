"""Completions of the reference policy, as a measurement."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from polyopt.errors import RecipeError
from polyopt.parts import part
from polyopt.prompts.protocol import PromptRequest
from polyopt.rollouts.independent import sample_independently
from polyopt.rollouts.protocol import Rollout, Sampling


@part("rollouts.measurements", provides={"reference_reward"})
@dataclass(frozen=True)
class ReferenceRollouts:
    """As many completions of the reference policy as rollouts; they are scored, not trained on.

    Their rewards become the column `reference_reward` [N], the i-th of a group paired with its i-th
    rollout. AAPO, arXiv 2505.14264.
    """

    column = "reference_reward"
    samples_reference = True
    paired = True

    def __call__(self, sampling: Sampling, requests: Sequence[PromptRequest]) -> list[Rollout]:
        """The reference policy's rollouts.

        Raises:
            RecipeError: The trainer offers no engine that samples from the reference policy.
        """
        if sampling.reference is None:
            raise RecipeError(
                "reference-rollouts samples from the reference policy, but the trainer offers no "
                "engine for it: give Sampling a `reference` engine, or drop the idea."
            )
        behind = dataclasses.replace(sampling, engine=sampling.reference)
        made = sample_independently(behind, requests, stage="reference")
        return [dataclasses.replace(rollout, trains=False) for rollout in made]
