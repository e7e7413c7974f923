"""The rollouts field of a recipe."""

from __future__ import annotations

from dataclasses import dataclass, field

from polyopt.distribution import Distribution
from polyopt.rollouts.independent import IndependentSampling
from polyopt.rollouts.protocol import Annotation, Sampler


@dataclass(frozen=True)
class Rollouts:
    """The rollouts field of a recipe.

    Attributes:
        sampler: How completions are sampled.
        additions: Chain of samplers whose rollouts join the groups (demonstrations).
        measurements: Chain of samplers whose rollouts are scored but don't train (a greedy
            baseline per prompt).
        annotations: Chain of parts that read columns off the completions.
        per_prompt: Rollouts per prompt.
        max_tokens: Most completion tokens.
        temperature: Divides the logits.
        top_k: See `Distribution`.
        top_p: See `Distribution`.
        min_p: See `Distribution`.
    """

    sampler: Sampler = field(default_factory=IndependentSampling)
    additions: tuple[Sampler, ...] = ()
    measurements: tuple[Sampler, ...] = ()
    annotations: tuple[Annotation, ...] = ()
    per_prompt: int = 8
    max_tokens: int = 256
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    @property
    def distribution(self) -> Distribution:
        """What training rollouts are sampled from."""
        return Distribution(self.temperature, self.top_k, self.top_p, self.min_p)
