"""What engines outside this process share: checks before asking, samples from what came back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from polyopt.engines.protocol import Finish, Sample, SampleRequest
from polyopt.engines.stopping import Decode, Ending
from polyopt.errors import UserError

if TYPE_CHECKING:
    from polyopt.models.policy import Policy


@dataclass(frozen=True)
class Limits:
    """What the policy's model can continue; None where nobody said.

    Attributes:
        vocabulary: Number of token ids.
        positions: Most tokens of a sequence.
    """

    vocabulary: int | None = None
    positions: int | None = None

    @staticmethod
    def of(policy: Policy) -> Limits:
        """The limits that the policy's configuration states."""
        config = policy.model.config.get_text_config(decoder=True)
        return Limits(config.vocab_size, getattr(config, "max_position_embeddings", None))


@dataclass(frozen=True)
class Answer:
    """What a foreign engine sampled for one request.

    Attributes:
        tokens: New token ids, as sampled.
        logp: Their log-probabilities in nats.
        finish: Why it says it ended.
    """

    tokens: tuple[int, ...]
    logp: tuple[float, ...]
    finish: Finish


Ask = Callable[[list[SampleRequest]], list[Answer]]


def sample_through(
    ask: Ask, requests: Sequence[SampleRequest], limits: Limits, decode: Decode, version: int
) -> list[Sample]:
    """The samples of the requests, in their order; those that are over already aren't asked."""
    for request in requests:
        check_request(request, limits)
    over = [Ending(request, decode).finish() for request in requests]
    asked = [r for r, finish in zip(requests, over, strict=True) if finish is None]
    answers = iter(ask(asked) if asked else [])
    return [
        sample_of(request, next(answers), decode, version)
        if finish is None
        else Sample(request, (), (), finish, version)
        for request, finish in zip(requests, over, strict=True)
    ]


def check_request(request: SampleRequest, limits: Limits) -> None:
    """Refuse what the model can't continue, and cuts that other engines make differently.

    Raises:
        UserError: No tokens, a token id outside the vocabulary, too many tokens, or min-p together
            with top-p.
    """
    context = request.prompt + request.prefix
    if not context:
        raise UserError("a request with neither prompt nor prefix: give at least one token.")
    most = limits.vocabulary
    bad = next((t for t in context if t < 0 or (most is not None and t >= most)), None)
    if bad is not None:
        raise UserError(
            f"token id {bad} is outside the model's vocabulary of {most}; is the prompt tokenized "
            "with this model's tokenizer?"
        )
    if limits.positions is not None and len(request.prompt) + request.max_tokens > limits.positions:
        raise UserError(
            f"a prompt of {len(request.prompt)} tokens and max_tokens={request.max_tokens} pass "
            f"the model's {limits.positions} positions; shorten the prompt or lower max_tokens."
        )
    if request.distribution.min_p > 0.0 and request.distribution.top_p < 1.0:
        raise UserError(
            f"min_p={request.distribution.min_p} and top_p={request.distribution.top_p} together: "
            "other engines cut in another order than the trainer; set one of the two, or use "
            "--engine local."
        )


def sample_of(request: SampleRequest, answer: Answer, decode: Decode, version: int) -> Sample:
    """The sample in an answer, cut after the first token that ends the completion.

    Raises:
        UserError: The engine ended it for a reason that the request doesn't know.
    """
    ending = Ending(request, decode)
    for i, token in enumerate(answer.tokens):
        finish = ending.append(token)
        if finish is not None:
            return Sample(request, answer.tokens[: i + 1], answer.logp[: i + 1], finish, version)
    if answer.finish == "stop" and request.stop_strings and answer.tokens:
        return Sample(request, answer.tokens, answer.logp, "stop", version)
    raise UserError(_unexpected_end(request, answer))


def _unexpected_end(request: SampleRequest, answer: Answer) -> str:
    asked = request.max_tokens - len(request.prefix)
    if answer.finish == "stop":
        last = f"token {answer.tokens[-1]}" if answer.tokens else "its first token"
        return (
            f"the engine stopped at {last}, which is no stop id of the model "
            f"({sorted(request.stop_ids)}): is it the same model? Does the server add stop tokens "
            "of its own (vLLM: start it with --generation-config vllm)?"
        )
    return (
        f"the engine gave {len(answer.tokens)} of {asked} tokens and says that it reached a length "
        "limit: its context is shorter than prompt and max_tokens; raise it (vLLM: "
        "--max-model-len) or lower --max-tokens."
    )
