"""The greedy completion of each prompt, as a measurement."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from polyopt.parts import part
from polyopt.prompts.protocol import PromptRequest
from polyopt.rollouts.independent import rollout_of
from polyopt.rollouts.protocol import Rollout, Sampling


@part("rollouts.measurements", provides={"greedy_reward"})
@dataclass(frozen=True)
class GreedyBaseline:
    """One completion per prompt at temperature 0; its reward becomes the column `greedy_reward`.

    ReMax, arXiv 2310.10505, section 3.
    """

    column = "greedy_reward"

    def __call__(self, sampling: Sampling, requests: Sequence[PromptRequest]) -> list[Rollout]:
        """The greedy rollouts; they don't train."""
        greedy = dataclasses.replace(sampling.base.distribution, temperature=0.0)
        asks = [
            dataclasses.replace(
                sampling.base,
                prompt=sampling.encode(request.prompt, ""),
                seed=sampling.seed_for("greedy", request, 0),
                distribution=greedy,
            )
            for request in requests
        ]
        samples = sampling.engine.sample(asks)
        pairs = zip(requests, samples, strict=True)
        return [rollout_of(request, sample, sampling, trains=False) for request, sample in pairs]
