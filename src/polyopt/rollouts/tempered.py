"""Control rollouts at another temperature, to raise or lower entropy."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from polyopt.parts import part
from polyopt.prompts.protocol import PromptRequest
from polyopt.rollouts.independent import entropy_of, sample_independently
from polyopt.rollouts.protocol import Rollout, Sampling


@part("rollouts.sampler", provides={"control"})
@dataclass(frozen=True)
class TemperedControls:
    """Plain rollouts, and then more of the first prompts at a temperature that pulls entropy back.

    The temperature is `high` if the mean token entropy of the plain rollouts is at most `target`,
    else `low`, times the run's own. The column `control` [N] is 1 for the additional rollouts;
    their group is that of the prompt's others.

    AEPO, arXiv 2510.08141 (the authors' trainer takes the entropy of the step before; here it is
    that of the policy that samples now, as in the equation).

    Attributes:
        target: Entropy that is aimed at, in nats.
        high: Factor on the temperature where entropy is low.
        low: Factor on the temperature where entropy is high.
        share: Share of the prompts that are sampled again.
    """

    target: float = 0.5
    high: float = 1.2
    low: float = 0.8
    share: float = 0.25

    def temperature(self, entropy: float) -> float:
        """Factor on the temperature of the controls."""
        return self.high if entropy <= self.target else self.low

    def __call__(self, sampling: Sampling, requests: Sequence[PromptRequest]) -> list[Rollout]:
        """Plain rollouts first, then the controls."""
        plain = sample_independently(sampling, requests)
        again = requests[: max(round(self.share * len(requests)), 1)]
        distribution = sampling.base.distribution
        factor = self.temperature(mean_entropy(plain))
        tempered = dataclasses.replace(distribution, temperature=distribution.temperature * factor)
        base = dataclasses.replace(sampling.base, distribution=tempered)
        other = dataclasses.replace(sampling, base=base)
        controls = sample_independently(other, again, stage="rollouts/control")
        return [_marked(r, 0.0) for r in plain] + [_marked(r, 1.0) for r in controls]


def mean_entropy(rollouts: Sequence[Rollout]) -> float:
    """Mean entropy of all sampled tokens in nats; 0 without any."""
    values: list[float] = []
    for rollout in rollouts:
        values += entropy_of(rollout)
    return sum(values) / max(len(values), 1)


def _marked(rollout: Rollout, control: float) -> Rollout:
    return dataclasses.replace(rollout, extras={**rollout.extras, "control": control})
