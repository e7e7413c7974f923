"""The log-probability boundary: what an objective sees of the model, and what its parts are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from jaxtyping import Float
from torch import Tensor

from polyopt.batch import Batch

Tokens = Float[Tensor, "N T"]


@dataclass(frozen=True)
class Evaluation:
    """All that an objective sees of the model.

    Attributes:
        logp: Log-probability in nats of each completion token under the current policy, of the
            distribution that was sampled from.
        entropy: Entropy in nats of that distribution at each token, if some part needs it.
        values: Value head's output at each token, if some part needs it.
        uniform_value: Mean log-probability of the whole vocabulary at each token's place, without
            gradient, if some part needs it.
    """

    logp: Tokens
    entropy: Tokens | None = None
    values: Tokens | None = None
    uniform_value: Tokens | None = None


@dataclass(frozen=True)
class TokenLoss:
    """Per-token losses, before aggregation.

    Attributes:
        loss: Loss of each token; what stands outside `loss_mask` is ignored.
        metrics: Values per token, logged as their mean over the trained tokens.
    """

    loss: Tokens
    metrics: Mapping[str, Tokens] = field(default_factory=dict)


@dataclass(frozen=True)
class Loss:
    """A scalar loss and what to log about it.

    Attributes:
        loss: Scalar; over all micro-batches of a step the losses add up.
        metrics: Values per token [N, T] (logged as mean over trained tokens).
        log_ratio: Log-importance-ratio of each token, without gradient; an `Objective` tells it.
    """

    loss: Float[Tensor, ""]
    metrics: Mapping[str, Tokens] = field(default_factory=dict)
    log_ratio: Tokens | None = None


class Ratio(Protocol):
    """The log-importance-ratio that each token is given: its own, its sequence's, ..."""

    def __call__(self, logp: Tokens, batch: Batch) -> Tokens:
        """Log-ratio of the current to the old policy at each token, from `logp_old`."""


class Surrogate(Protocol):
    """The policy term as a function of log-ratio and advantage.

    Most give token losses. A method that defines its own reduction (regressions over rollouts or
    pairs, group losses) gives a `Loss`, declares `aggregates = True` (the recipe's aggregation then
    only serves the penalties, and trust regions can't be added), and, if rows are coupled,
    `coupled = True`.
    """

    def __call__(
        self, log_ratio: Tokens, evaluation: Evaluation, batch: Batch
    ) -> TokenLoss | Loss: ...


class TrustRegion(Protocol):
    """Changes token losses to keep the step small: masks, penalties, covariance clips.

    A part whose outcome at one row depends on other rows declares `coupled = True`.
    """

    def __call__(
        self, token_loss: TokenLoss, log_ratio: Tokens, evaluation: Evaluation, batch: Batch
    ) -> TokenLoss: ...


class Penalty(Protocol):
    """A token loss that is added to the surrogate's: KL to a reference, entropy bonus, value loss.

    Its `coefficient` is the factor with which it is added.
    """

    coefficient: float

    def __call__(self, evaluation: Evaluation, batch: Batch) -> TokenLoss: ...


class Aggregation(Protocol):
    """How token losses become a scalar: `loss = (coefficients * token_loss).sum()`."""

    def __call__(self, batch: Batch) -> Tokens:
        """Coefficients [N, T] over a whole optimizer batch; 0 outside `loss_mask`."""
