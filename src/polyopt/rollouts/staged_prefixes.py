"""Rollouts of one prompt that start at different stages of a known solution."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from polyopt.parts import part
from polyopt.prompts.protocol import PromptRequest
from polyopt.rollouts.hints import hint_prefix
from polyopt.rollouts.independent import rollout_of
from polyopt.rollouts.protocol import Rollout, Sampling


@part("rollouts.sampler", needs={"metadata:solution"}, provides={"path"})
@dataclass(frozen=True)
class StagedSampling:
    """A prompt's rollouts take turns in starting from ever longer beginnings of its `solution`.

    Rollout i is shown the first `shares[i % len(shares)]` of the solution, as part of its prompt.
    The beginnings are nodes of a tree with one branch; adds the column `path` [N, D] (see
    `PrefixPaths`). Tree-OPO, arXiv 2509.09284, takes them from the many branches of a teacher's
    tree search: with such trees, fill the column in a sampler of your own.

    Attributes:
        shares: Shares of the solution that are shown, shortest first.
        lead: What stands between the problem and the beginning; nothing is added for share 0.
    """

    shares: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75)
    lead: str = "\nGo on from this beginning of a solution:\n"

    def __call__(self, sampling: Sampling, requests: Sequence[PromptRequest]) -> list[Rollout]:
        """All requests in one engine call."""
        owners, stages, asks = [], [], []
        for request in requests:
            for i in range(request.rollouts):
                stage = i % len(self.shares)
                prompt = sampling.encode(request.prompt, self._beginning(request, stage))
                seed = sampling.seed_for("rollouts", request, i)
                owners.append(request)
                stages.append(stage)
                asks.append(dataclasses.replace(sampling.base, prompt=prompt, seed=seed))
        samples = sampling.engine.sample(asks)
        rollouts = []
        for request, stage, sample in zip(owners, stages, samples, strict=True):
            rollout = rollout_of(request, sample, sampling)
            path = tuple(float(k) if k <= stage else -1.0 for k in range(len(self.shares)))
            extras = {**rollout.extras, "path": path}
            rollouts.append(dataclasses.replace(rollout, extras=extras))
        return rollouts

    def _beginning(self, request: PromptRequest, stage: int) -> str:
        shown = hint_prefix(str(request.prompt.metadata["solution"]), self.shares[stage])
        return self.lead + shown if shown else ""
