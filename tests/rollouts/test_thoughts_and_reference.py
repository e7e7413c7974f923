"""Samplers that think once and answer often, and that ask the reference policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
import torch

from polyopt.batch import Prompt
from polyopt.engines.protocol import Sample, SampleRequest
from polyopt.errors import RecipeError
from polyopt.prompts.protocol import PromptRequest
from polyopt.rollouts.assemble import assemble
from polyopt.rollouts.protocol import Sampling
from polyopt.rollouts.reference import ReferenceRollouts
from polyopt.rollouts.thoughts import ThoughtsThenAnswers

THINK = 7


class Scripted:
    """Thoughts are `1 2 7`, except the second, which never ends; answers are two tokens."""

    def __init__(self, offset: float = 0.0) -> None:
        self.offset = offset
        self.asked: list[SampleRequest] = []

    def sample(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        self.asked += requests
        return [self._one(i, request) for i, request in enumerate(requests)]

    def _one(self, i: int, request: SampleRequest) -> Sample:
        tokens = (3, 4) if request.prefix else ((1, 2, THINK) if i != 1 else (1, 1, 1))
        logp = tuple(-0.1 * token - self.offset for token in tokens)
        finish = "length" if not request.prefix and i == 1 else "stop"
        entropy = tuple(float(token) for token in tokens)
        return Sample(request, tokens, logp, finish, 5, entropy)  # type: ignore[arg-type]

    def sync(self, policy: object) -> None: ...


def sampling(engine: Scripted, **changes: object) -> Sampling:
    base = SampleRequest(prompt=(), seed=0, max_tokens=8, entropy=True)
    return dataclasses.replace(
        Sampling(
            engine=engine,
            encode=lambda prompt, addition: (9,),
            encode_completion=lambda text: (9, 0),
            decode=lambda tokens: "".join("</think>" if t == THINK else str(t) for t in tokens),
            judge=lambda rollouts: [0.0] * len(rollouts),
            base=base,
            seed=0,
            step=0,
        ),
        **changes,
    )


def test_answers_share_their_thoughts_tokens_which_count_as_sampled() -> None:
    engine = Scripted()
    requests = [PromptRequest(Prompt("p", ""), 0, 6)]
    rollouts = ThoughtsThenAnswers(answers=2)(sampling(engine), requests)
    batch = assemble(rollouts, 8)
    assert sorted(batch["thought"].tolist()) == [0, 0, 1, 2, 2]
    whole = batch.select(batch["thought"] == 0)
    assert whole["tokens"].tolist() == [[1, 2, THINK, 3, 4]] * 2
    assert whole["thought_tokens"].tolist() == [[1, 1, 1, 0, 0]] * 2
    assert whole.mask.all()
    torch.testing.assert_close(
        whole["logp_sampler"][0], torch.tensor([-0.1, -0.2, -0.7, -0.3, -0.4])
    )
    assert whole["entropy"][0].tolist() == [1, 2, 7, 3, 4]
    endless = batch.select(batch["thought"] == 1)
    assert endless["thought_tokens"].tolist() == [[1, 1, 1, 0, 0]]
    assert endless["truncated"].all()


def test_answers_have_streams_of_their_own_and_do_not_stop_at_the_thoughts_end() -> None:
    engine = Scripted()
    ThoughtsThenAnswers(answers=3)(sampling(engine), [PromptRequest(Prompt("p", ""), 0, 3)])
    thought, *answers = engine.asked
    assert thought.stop_strings == ("</think>",)
    assert [ask.stop_strings for ask in answers] == [()] * 3
    assert len({ask.seed for ask in answers}) == 3


def test_reference_rollouts_come_from_the_reference_engine_and_do_not_train() -> None:
    policy, reference = Scripted(), Scripted(offset=1.0)
    requests = [PromptRequest(Prompt("p", ""), 0, 3)]
    made = ReferenceRollouts()(sampling(policy, reference=reference), requests)
    assert not policy.asked
    assert len(made) == len(reference.asked) == 3
    assert not any(rollout.trains for rollout in made)


def test_reference_rollouts_without_a_reference_engine_say_so() -> None:
    with pytest.raises(RecipeError, match="reference"):
        ReferenceRollouts()(sampling(Scripted()), [PromptRequest(Prompt("p", ""), 0, 3)])
