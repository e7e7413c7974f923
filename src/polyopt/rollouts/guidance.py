"""Guidance: hints in the prompt while sampling, and none while training."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from polyopt.parts import part
from polyopt.prompts.protocol import PromptRequest
from polyopt.rollouts.hints import all_wrong, hint_prefix
from polyopt.rollouts.independent import sample_independently
from polyopt.rollouts.protocol import Rollout, Sampling


@part("rollouts.sampler", needs={"metadata:solution"}, provides={"guided"})
@dataclass(frozen=True)
class HintOnFailure:
    """Plain rollouts; groups in which all fail get as many hinted ones added.

    A hinted rollout's row holds the plain prompt, so that the policy is trained for the context
    without the hint, and its `logp_sampler` is that of the hinted one (`hinted_ratio`). Adds the
    column `guided` [N]. The hint is the beginning of the prompt's `solution`.

    Guide, "Adaptive Guidance Accelerates Reinforcement Learning of Reasoning Models", arXiv
    2506.13923 (reconstructed from the abstract: numbers of rollouts and the hint are ours).

    Attributes:
        share: Share of the solution's characters that is shown.
        lead: What stands between the problem and the hint.
    """

    share: float = 0.5
    lead: str = "\nA correct solution starts like this:\n"

    def __call__(self, sampling: Sampling, requests: Sequence[PromptRequest]) -> list[Rollout]:
        """Plain rollouts, then hinted ones."""
        plain = sample_independently(sampling, requests)
        hard = all_wrong(plain, sampling, requests)
        hints = [
            self.lead + hint_prefix(str(r.prompt.metadata["solution"]), self.share) for r in hard
        ]
        hinted = sample_independently(sampling, hard, additions=hints, stage="rollouts/guided")
        return [_marked(rollout, 0.0) for rollout in plain] + [
            dataclasses.replace(
                _marked(rollout, 1.0), prompt_tokens=sampling.encode(rollout.request.prompt, "")
            )
            for rollout in hinted
        ]


def _marked(rollout: Rollout, guided: float) -> Rollout:
    return dataclasses.replace(rollout, extras={**rollout.extras, "guided": guided})
