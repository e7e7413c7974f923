"""What an engine is: requests in, samples out."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from polyopt.models.policy import Policy

Finish = Literal["stop", "length"]


@dataclass(frozen=True)
class Distribution:
    """The distribution that tokens are drawn from, as a transform of the model's logits.

    Sampler and trainer both use it, so log-probabilities are those of what was really sampled.

    Attributes:
        temperature: Divides the logits; 0 means greedy decoding.
        top_k: Keep the k most likely tokens; 0 keeps all.
        top_p: Keep the most likely tokens up to this total probability; 1 keeps all.
        min_p: Drop tokens less likely than this fraction of the most likely one; 0 keeps all.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    @property
    def truncated(self) -> bool:
        """Whether some tokens are cut off."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0


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
        entropy: Also return the entropy of the sampled-from distribution at each new token.
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
        entropy: Entropy in nats at each new token, if asked for.
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


class Engine(Protocol):
    """Samples completions from the policy."""

    def sample(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        """The samples of the requests, in their order."""

    def sync(self, policy: Policy) -> None:
        """Take over the policy's current weights and version."""


def apply_distribution(logits: Tensor, distribution: Distribution) -> Tensor:
    """Logits [..., V] of the distribution that is sampled from; cut tokens get -inf.

    Cuts are made in the order top-k, top-p, min-p on the tempered logits. A temperature of 0 is
    left to the caller (greedy decoding is not a distribution to train on).
    """
    if distribution.temperature not in (0.0, 1.0):
        logits = logits / distribution.temperature
    if not distribution.truncated:
        return logits
    if 0 < distribution.top_k < logits.shape[-1]:
        kth = logits.topk(distribution.top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < kth, float("-inf"))
    if distribution.top_p < 1.0:
        ordered, index = logits.sort(dim=-1, descending=True)
        probs = ordered.softmax(-1)
        cut = probs.cumsum(-1) - probs >= distribution.top_p
        logits = logits.masked_fill(cut.scatter(-1, index, cut), float("-inf"))
    if distribution.min_p > 0.0:
        probs = logits.softmax(-1)
        low = probs < distribution.min_p * probs.amax(-1, keepdim=True)
        logits = logits.masked_fill(low, float("-inf"))
    return logits
