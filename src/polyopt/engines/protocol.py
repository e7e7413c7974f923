"""What an engine is: requests in, samples out."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from polyopt.distribution import Distribution

if TYPE_CHECKING:
    from polyopt.models.policy import Policy

Finish = Literal["stop", "length"]


@dataclass(frozen=True)
class SampleRequest:
    """One completion to sample.

    Attributes:
        prompt: Prompt token ids.
        prefix: Completion tokens that are already there (a fork, a resumed rollout, a hint); the
            engine continues after them.
        max_tokens: Most completion tokens, the prefix included.
        seed: Seed of this request's own random stream. Position t of the completion uses draw t,
            so a fork with the same seed would repeat its parent's choices.
        distribution: What is sampled from.
        stop_ids: Token ids that end a completion; the one that was sampled is part of it.
        stop_strings: Texts that end a completion once its text contains one; the tokens that
            complete the text are part of it.
        entropy: Also return the entropy of the sampled-from distribution at each new token, where
            the engine can.
    """

    prompt: tuple[int, ...]
    seed: int
    max_tokens: int
    prefix: tuple[int, ...] = ()
    distribution: Distribution = field(default_factory=Distribution)
    stop_ids: frozenset[int] = frozenset()
    stop_strings: tuple[str, ...] = ()
    entropy: bool = False


@dataclass(frozen=True)
class Sample:
    """One sampled completion.

    Attributes:
        request: What was asked for.
        tokens: The new tokens, without the request's prefix.
        logp: Their log-probabilities in nats under the request's distribution, from the very
            logits that were sampled from.
        finish: `"stop"` if a stop id or string ended it, `"length"` if `max_tokens` did.
        version: Weights version that sampled it.
        entropy: Entropy in nats at each new token, if asked for and the engine knows it.
    """

    request: SampleRequest
    tokens: tuple[int, ...]
    logp: tuple[float, ...]
    finish: Finish
    version: int
    entropy: tuple[float, ...] | None = None

    def fork(self, position: int, *, seed: int, max_tokens: int | None = None) -> SampleRequest:
        """A request that resumes from this completion after its first `position` tokens.

        Args:
            position: Tokens to keep, counted from the start of the completion (prefix included).
            seed: Seed of the new branch.
            max_tokens: Most completion tokens, the kept ones included; None keeps the request's.
        """
        whole = self.request.prefix + self.tokens
        if not 0 <= position <= len(whole):
            raise ValueError(f"fork at {position} of a completion of {len(whole)} tokens")
        return dataclasses.replace(
            self.request,
            prefix=whole[:position],
            seed=seed,
            max_tokens=self.request.max_tokens if max_tokens is None else max_tokens,
        )


@runtime_checkable
class Rests(Protocol):
    """An engine that can give memory back while the policy is updated."""

    def rest(self) -> None:
        """Give back what the next `sample` or `sync` takes again."""


class Engine(Protocol):
    """Samples completions from the policy."""

    def sample(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        """The samples of the requests, in their order."""

    def sync(self, policy: Policy) -> None:
        """Take over the policy's current weights and version."""
