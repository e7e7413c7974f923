"""Demonstrations: completions that somebody else wrote, as rows of their prompt's group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polyopt.batch import FORCED
from polyopt.engines.protocol import Finish
from polyopt.parts import part
from polyopt.prompts.protocol import PromptRequest
from polyopt.rollouts.protocol import Rollout, Sampling


@part("rollouts.additions", needs={"metadata:solution"}, provides={"demonstration"})
@dataclass(frozen=True)
class ShowSolution:
    """One row per prompt holding its reference `solution`, with column `demonstration` = 1.

    Its tokens train as if the policy had written them (they are in `mask`); whoever adds this part
    also brings the loss that knows better. Its reward is the verifier's verdict on it. The policy's
    own rows have `demonstration` = 0.
    """

    def __call__(self, sampling: Sampling, requests: Sequence[PromptRequest]) -> list[Rollout]:
        """The demonstrations of all requests."""
        return [self._row(sampling, request) for request in requests]

    def _row(self, sampling: Sampling, request: PromptRequest) -> Rollout:
        text = str(request.prompt.metadata["solution"])
        tokens = sampling.encode_completion(text)
        finish: Finish = "stop" if len(tokens) <= sampling.base.max_tokens else "length"
        tokens = tokens[: sampling.base.max_tokens]
        return Rollout(
            request=request,
            prompt_tokens=sampling.encode(request.prompt, ""),
            tokens=tokens,
            logp=(0.0,) * len(tokens),
            provenance=(FORCED,) * len(tokens),
            finish=finish,
            text=text,
            extras={"demonstration": 1.0},
        )
