"""Independent sampling: the rollouts of a prompt know nothing of each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from polyopt.batch import FORCED
from polyopt.engines.protocol import Sample
from polyopt.errors import UserError
from polyopt.parts import part
from polyopt.prompts.protocol import PromptRequest
from polyopt.rollouts.protocol import Rollout, Sampling


def rollout_of(
    request: PromptRequest, sample: Sample, sampling: Sampling, *, trains: bool = True
) -> Rollout:
    """The rollout that one engine sample makes; its request's prefix counts as forced."""
    forced = len(sample.request.prefix)
    tokens = sample.request.prefix + sample.tokens
    extras = {}
    if sample.entropy is not None:
        extras["entropy"] = (0.0,) * forced + sample.entropy
    return Rollout(
        request=request,
        prompt_tokens=sample.request.prompt,
        tokens=tokens,
        logp=(0.0,) * forced + sample.logp,
        provenance=(FORCED,) * forced + (sample.version,) * len(sample.tokens),
        finish=sample.finish,
        text=sampling.decode(tokens),
        trains=trains,
        extras=extras,
    )


def entropy_of(rollout: Rollout) -> tuple[float, ...]:
    """Entropy in nats at each token of the completion, as the engine saw it.

    Raises:
        UserError: The engine doesn't tell.
    """
    entropy = rollout.extras.get("entropy")
    if not isinstance(entropy, tuple):
        raise UserError(
            "an idea of this recipe samples by the entropy of each token, which only the local "
            "engine gives: use --engine local, or drop that idea."
        )
    return entropy


@part("rollouts.sampler")
@dataclass(frozen=True)
class IndependentSampling:
    """n completions of the plain prompt, each with its own random stream."""

    def __call__(self, sampling: Sampling, requests: Sequence[PromptRequest]) -> list[Rollout]:
        """All requests in one engine call."""
        return sample_independently(sampling, requests)


def sample_independently(
    sampling: Sampling,
    requests: Sequence[PromptRequest],
    *,
    additions: Sequence[str] | None = None,
    stage: str = "rollouts",
) -> list[Rollout]:
    """Sample each request's rollouts, with an addition to each prompt (hints) if given."""
    owners, asks = [], []
    for request, addition in zip(requests, additions or [""] * len(requests), strict=True):
        prompt = sampling.encode(request.prompt, addition)
        for i in range(request.rollouts):
            seed = sampling.seed_for(stage, request, i)
            owners.append(request)
            asks.append(dataclasses.replace(sampling.base, prompt=prompt, seed=seed))
    samples = sampling.engine.sample(asks)
    return [rollout_of(o, s, sampling) for o, s in zip(owners, samples, strict=True)]
