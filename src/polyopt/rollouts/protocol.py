"""What a rollout and a sampler are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from polyopt.batch import Batch, Prompt
from polyopt.engines.protocol import Engine, Finish, SampleRequest
from polyopt.prompts.protocol import PromptRequest
from polyopt.seeding import derive_seed


@dataclass(frozen=True)
class Rollout:
    """One sampled trajectory, as one row of the training batch.

    Attributes:
        request: The prompt visit it belongs to.
        prompt_tokens: What the model was really given (with a hint, where there was one).
        tokens: Completion tokens.
        logp: Sampler's log-probability of each token; 0 where the token wasn't sampled.
        provenance: Per token, the weights version that sampled it, or `FORCED` or `ENVIRONMENT`.
        finish: Why it ended.
        text: The completion as text.
        trains: False for rollouts that only serve as a measurement (a greedy baseline).
        extras: Values of this rollout that become columns: a number, or one number per token.
    """

    request: PromptRequest
    prompt_tokens: tuple[int, ...]
    tokens: tuple[int, ...]
    logp: tuple[float, ...]
    provenance: tuple[int, ...]
    finish: Finish
    text: str
    trains: bool = True
    extras: Mapping[str, float | tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Sampling:
    """What a sampler works with: how to ask the engine, and how to judge what came back.

    Attributes:
        engine: Samples completions.
        encode: Prompt and an addition to its last user message (a hint; usually "") to token ids.
        encode_completion: Text of a whole completion to token ids, the stop token included.
        decode: Token ids to text.
        judge: Accuracy of each rollout (its total reward where the task knows no "right"), NaN
            where nobody could score it.
        base: A request with the run's distribution, stop ids and lengths, to be filled in.
        seed: The run's seed.
        step: The current training step.
        reference: Samples from the reference policy, where the trainer offers that.
    """

    engine: Engine
    encode: Callable[[Prompt, str], tuple[int, ...]]
    encode_completion: Callable[[str], tuple[int, ...]]
    decode: Callable[[Sequence[int]], str]
    judge: Callable[[Sequence[Rollout]], Sequence[float]]
    base: SampleRequest
    seed: int
    step: int
    reference: Engine | None = None

    def seed_for(self, stage: str, request: PromptRequest, index: int) -> int:
        """Seed of one draw: from (run seed, step, stage, prompt, visit in this step, rollout)."""
        visit = (request.prompt.id, request.occurrence)
        return derive_seed(self.seed, self.step, stage, *visit, index)


class Sampler(Protocol):
    """How completions are sampled.

    One that only measures (`rollouts.measurements`) names in `column` the batch column into which
    the trainer writes the reward of its rollout for each group.
    """

    def __call__(self, sampling: Sampling, requests: Sequence[PromptRequest]) -> list[Rollout]:
        """The rollouts of all requests, in any order and number."""


TokenTexts = Callable[[Sequence[int]], list[str]]
"""Token ids to the text of each token by itself."""


class Annotation(Protocol):
    """Reads columns off the completions of a batch (the answer's place, steps, turns)."""

    def __call__(self, batch: Batch, token_texts: TokenTexts) -> Mapping[str, Tensor]:
        """Columns by name, each with one entry per row."""
