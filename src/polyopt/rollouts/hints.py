"""Hints: the beginning of a reference solution, given to prompts that are too hard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polyopt.batch import Prompt
from polyopt.parts import part
from polyopt.prompts.protocol import PromptRequest
from polyopt.rollouts.independent import sample_independently
from polyopt.rollouts.protocol import Rollout, Sampling


@part("rollouts.sampler", needs={"metadata:solution"})
@dataclass(frozen=True)
class GuidedSampling:
    """Plain rollouts first; groups in which all fail are sampled anew with ever longer hints.

    For each share in turn, a group whose rollouts all have accuracy <= 0 is replaced by one whose
    prompt ends in the first `round(share * characters)` of the prompt's `solution`. The hint is
    part of the prompt and is not trained. Each rollout keeps the prompt that it was sampled from.

    GHPO ("Guided Hybrid Policy Optimization", 2025), section 3.

    Attributes:
        shares: Shares of the solution that are shown, in order.
        lead: What stands between the problem and the hint.
    """

    shares: tuple[float, ...] = (0.25, 0.5, 0.75)
    lead: str = "\nA correct solution starts like this:\n"

    def __call__(self, sampling: Sampling, requests: Sequence[PromptRequest]) -> list[Rollout]:
        """The rollouts of each group's last round."""
        kept = sample_independently(sampling, requests)
        for number, share in enumerate(self.shares, start=1):
            hard = all_wrong(kept, sampling, requests)
            if not hard:
                break
            hints = [self._hint(request.prompt, share) for request in hard]
            stage = f"rollouts/hint{number}"
            redone = sample_independently(sampling, hard, additions=hints, stage=stage)
            groups = {request.group for request in hard}
            kept = [r for r in kept if r.request.group not in groups] + redone
        return kept

    def _hint(self, prompt: Prompt, share: float) -> str:
        return self.lead + hint_prefix(str(prompt.metadata["solution"]), share)


def hint_prefix(solution: str, share: float) -> str:
    """The first `round(share * len(solution))` characters (ties to even, as published)."""
    return solution[: round(share * len(solution))]


def all_wrong(
    rollouts: Sequence[Rollout], sampling: Sampling, requests: Sequence[PromptRequest]
) -> list[PromptRequest]:
    """Requests none of whose rollouts has an accuracy above 0 (unscored ones don't count)."""
    solved = {
        rollout.request.group
        for rollout, accuracy in zip(rollouts, sampling.judge(rollouts), strict=True)
        if not accuracy <= 0
    }
    return [request for request in requests if request.group not in solved]
