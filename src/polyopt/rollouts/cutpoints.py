"""Values along a completion, from fresh continuations of its beginnings."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from polyopt.engines.protocol import SampleRequest
from polyopt.parts import part
from polyopt.prompts.protocol import PromptRequest
from polyopt.rollouts.independent import rollout_of, sample_independently
from polyopt.rollouts.protocol import Rollout, Sampling


def cutpoints(logp: Sequence[float], interval: int, bound: float) -> list[int]:
    """Every `interval`-th token whose log-probability is below `bound`, from the first on."""
    return [t for t, value in enumerate(logp) if value < bound][::interval]


@part("rollouts.sampler", provides={"cut", "prefix_values"})
@dataclass(frozen=True)
class CutpointSampling:
    """Independent rollouts, each cut at its choices and continued afresh from every cut.

    A cut is every `interval`-th token of probability below rho. Its value is the mean accuracy of
    `continuations` completions that keep what stands before it; they train nothing. Adds the
    columns `cut` and `prefix_values` [N, T] for `segment_gain`. SPO-chain, arXiv 2505.23564.

    Attributes:
        continuations: Fresh continuations per cut (9 in the paper's runs).
        interval: Choices from one cut to the next (5 is the default of the authors' code).
        rho: Probability from which on a token is no choice.
    """

    continuations: int = 9
    interval: int = 5
    rho: float = 0.9

    def __call__(self, sampling: Sampling, requests: Sequence[PromptRequest]) -> list[Rollout]:
        """The rollouts, in order, with their values."""
        rollouts = sample_independently(sampling, requests)
        cuts = [cutpoints(r.logp, self.interval, math.log(self.rho)) for r in rollouts]
        asks = [ask for i, cut in enumerate(cuts) for ask in self._asks(sampling, rollouts, i, cut)]
        owners = [i for i, cut in enumerate(cuts) for _ in range(len(cut) * self.continuations)]
        samples = sampling.engine.sample(asks) if asks else []
        tried = [
            rollout_of(rollouts[i].request, sample, sampling, trains=False)
            for i, sample in zip(owners, samples, strict=True)
        ]
        scores = iter(sampling.judge(tried) if tried else [])
        marked = []
        for rollout, cut in zip(rollouts, cuts, strict=True):
            values = [_mean([next(scores) for _ in range(self.continuations)]) for _ in cut]
            marked.append(_with_values(rollout, cut, values))
        return marked

    def _asks(
        self, sampling: Sampling, rollouts: Sequence[Rollout], index: int, cut: Sequence[int]
    ) -> list[SampleRequest]:
        """Continuations of one rollout, cut by cut."""
        rollout = rollouts[index]
        return [
            dataclasses.replace(
                sampling.base,
                prompt=rollout.prompt_tokens,
                prefix=rollout.tokens[:place],
                seed=sampling.seed_for(
                    f"rollouts/cut{place}", rollout.request, index * self.continuations + k
                ),
            )
            for place in cut
            for k in range(self.continuations)
        ]


def _mean(scores: Sequence[float]) -> float:
    """Mean of the known scores; 0 if none is known."""
    known = [score for score in scores if not math.isnan(score)]
    return sum(known) / len(known) if known else 0.0


def _with_values(rollout: Rollout, cut: Sequence[int], values: Sequence[float]) -> Rollout:
    marks, along = [0.0] * len(rollout.tokens), [0.0] * len(rollout.tokens)
    for place, value in zip(cut, values, strict=True):
        marks[place], along[place] = 1.0, value
    extras = {**rollout.extras, "cut": tuple(marks), "prefix_values": tuple(along)}
    return dataclasses.replace(rollout, extras=extras)
