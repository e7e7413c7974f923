"""Several thoughts a prompt, and several answers a thought."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from polyopt.engines.protocol import Sample, SampleRequest
from polyopt.parts import part
from polyopt.prompts.protocol import PromptRequest
from polyopt.rollouts.independent import rollout_of
from polyopt.rollouts.protocol import Rollout, Sampling


@part("rollouts.sampler", provides={"thought", "thought_tokens"})
@dataclass(frozen=True)
class ThoughtsThenAnswers:
    """Samples n / M thoughts up to `end`, then M answers from the end of each.

    Each answer makes a rollout that holds its thought's tokens too, with `thought` [N], the number
    of the thought within its prompt, and `thought_tokens` [N, T]. A thought that ends the
    completion itself, or that fills the limit, is one rollout and all thought.
    GRPO-MA, arXiv 2509.24494.

    Attributes:
        answers: M, answers per thought.
        end: Text that ends a thought.
    """

    answers: int = 4
    end: str = "</think>"

    def __call__(self, sampling: Sampling, requests: Sequence[PromptRequest]) -> list[Rollout]:
        """Two engine calls: all thoughts, then all answers."""
        owners, asks = [], []
        for request in requests:
            prompt = sampling.encode(request.prompt, "")
            for number in range(max(request.rollouts // self.answers, 1)):
                seed = sampling.seed_for("thoughts", request, number)
                ask = dataclasses.replace(sampling.base, prompt=prompt, seed=seed)
                stops = (*sampling.base.stop_strings, self.end)
                owners.append((request, number))
                asks.append(dataclasses.replace(ask, stop_strings=stops))
        thoughts = sampling.engine.sample(asks)
        finished, forks = [], []
        for owner, thought in zip(owners, thoughts, strict=True):
            if self._goes_on(thought, sampling):
                forks += [(owner, thought, ask) for ask in self._asks(owner, thought, sampling)]
            else:
                finished.append(_rollout(owner, thought, None, sampling))
        answers = sampling.engine.sample([ask for _, _, ask in forks]) if forks else []
        pairs = zip(forks, answers, strict=True)
        return finished + [_rollout(o, t, answer, sampling) for (o, t, _), answer in pairs]

    def _goes_on(self, thought: Sample, sampling: Sampling) -> bool:
        """Whether the thought ended with its mark and leaves room for an answer."""
        ended = thought.finish == "stop" and self.end in sampling.decode(thought.tokens)
        return ended and len(thought.tokens) < sampling.base.max_tokens

    def _asks(
        self, owner: tuple[PromptRequest, int], thought: Sample, sampling: Sampling
    ) -> list[SampleRequest]:
        request, number = owner
        count = len(thought.tokens)
        seeds = [
            sampling.seed_for("answers", request, number * self.answers + i)
            for i in range(self.answers)
        ]
        forks = [thought.fork(count, seed=seed) for seed in seeds]
        stops = sampling.base.stop_strings
        return [dataclasses.replace(fork, stop_strings=stops) for fork in forks]


def _rollout(
    owner: tuple[PromptRequest, int], thought: Sample, answer: Sample | None, sampling: Sampling
) -> Rollout:
    """One thought with one answer; the thought's tokens are sampled ones, not forced."""
    request, number = owner
    made = rollout_of(request, thought if answer is None else answer, sampling)
    inside = len(thought.tokens)
    after = len(made.tokens) - inside
    entropy = made.extras.get("entropy")
    marks: dict[str, float | tuple[float, ...]] = {
        "thought": float(number),
        "thought_tokens": (1.0,) * inside + (0.0,) * after,
    }
    if isinstance(entropy, tuple) and thought.entropy is not None:
        marks["entropy"] = thought.entropy + entropy[inside:]
    return dataclasses.replace(
        made,
        logp=thought.logp + made.logp[inside:],
        provenance=(thought.version,) * inside + made.provenance[inside:],
        extras={**made.extras, **marks},
    )
