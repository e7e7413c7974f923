"""Divergences between two policies, estimated from sampled tokens.

Everything here is a function of d, the log-probability of a sampled token under the one policy less
that under the other. Which policy sampled decides what it estimates; each docstring says it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor

Tokens = Float[Tensor, "N T"]

LOG_RATIO_BOUND = 20.0
"""Log-ratios are held to +-20 before exp: beyond, a ratio is noise and its gradient near inf."""


def bounded_exp(log_ratio: Tokens) -> Tokens:
    """exp of the log-ratio held to +-20; no gradient beyond."""
    return log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()


def k1(logp: Tokens, logp_ref: Tokens) -> Tokens:
    """logp - logp_ref: unbiased for KL(pi || ref), but its gradient as a loss is 0 in expectation.

    J. Schulman, "Approximating KL divergence" (2020).
    """
    return logp - logp_ref


def k2(logp: Tokens, logp_ref: Tokens) -> Tokens:
    """(logp - logp_ref)^2 / 2: as a loss, its expected gradient is that of KL(pi || ref)."""
    return (logp - logp_ref).square() / 2


def k3(logp: Tokens, logp_ref: Tokens, bound: float | None = None) -> Tokens:
    """exp(-d) + d - 1, d = logp - logp_ref: unbiased, never negative, low variance.

    With `bound` the result is held to +-bound, inside the graph (verl: 10).
    """
    minus_d = (logp_ref - logp).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    value = minus_d.exp() - minus_d - 1
    return value if bound is None else value.clamp(-bound, bound)


def straight_through(value: Tokens, gradient: Tokens) -> Tokens:
    """A number with the value of the one and the gradient of the other."""
    return value.detach() + (gradient - gradient.detach())


def exact_kl(logits: Float[Tensor, "*B V"], other: Float[Tensor, "*B V"]) -> Float[Tensor, "*B"]:
    """KL(p || q) = sum_v p_v (log p_v - log q_v) over the whole vocabulary, in nats."""
    log_p, log_q = logits.log_softmax(-1), other.log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


class Divergence(Protocol):
    """An estimate at each token, from d = logp - logp of the policy that is compared with."""

    def __call__(self, d: Tokens) -> Tokens: ...


class SlopedDivergence(Divergence, Protocol):
    """A divergence of which the derivative by d is known in closed form."""

    def slope(self, d: Tokens) -> Tokens: ...


@dataclass(frozen=True)
class K1:
    """d."""

    def __call__(self, d: Tokens) -> Tokens:
        """Estimate of KL(pi || ref) at tokens that pi sampled."""
        return d


@dataclass(frozen=True)
class AbsoluteLogRatio:
    """|d|."""

    def __call__(self, d: Tokens) -> Tokens:
        """Distance of the log-probabilities."""
        return d.abs()


@dataclass(frozen=True)
class K2:
    """d^2 / 2."""

    def __call__(self, d: Tokens) -> Tokens:
        """Second-order estimate of the KL divergence, whoever sampled."""
        return d.square() / 2

    def slope(self, d: Tokens) -> Tokens:
        """Derivative by d."""
        return d


@dataclass(frozen=True)
class K3:
    """exp(-d) + d - 1, held to +-`bound` if there is one."""

    bound: float | None = None

    def __call__(self, d: Tokens) -> Tokens:
        """Estimate of KL(pi || ref) at tokens that pi sampled."""
        return k3(d, torch.zeros_like(d), self.bound)


@dataclass(frozen=True)
class ForwardKL:
    """KL(old || pi): -d, at tokens that the old policy sampled. Off-policy exact.

    RPG, arXiv 2505.17508, Table 1.
    """

    def __call__(self, d: Tokens) -> Tokens:
        """Estimate [N, T]."""
        return -d

    def slope(self, d: Tokens) -> Tokens:
        """Derivative by d."""
        return -torch.ones_like(d)


@dataclass(frozen=True)
class ReverseKL:
    """KL(pi || old): w d with w = exp(d), at tokens that the old policy sampled. Off-policy exact.

    RPG, arXiv 2505.17508, Table 1.
    """

    def __call__(self, d: Tokens) -> Tokens:
        """Estimate [N, T]."""
        return bounded_exp(d) * d

    def slope(self, d: Tokens) -> Tokens:
        """Derivative by d."""
        return bounded_exp(d) * (d + 1)


@dataclass(frozen=True)
class UnnormalizedForwardKL:
    """KL(old || pi) of measures: w - d - 1, at tokens that the old policy sampled; never negative.

    Schulman's k3 with the old policy as sampler. RPG, arXiv 2505.17508, Table 1.
    """

    def __call__(self, d: Tokens) -> Tokens:
        """Estimate [N, T]."""
        return bounded_exp(d) - d - 1

    def slope(self, d: Tokens) -> Tokens:
        """Derivative by d."""
        return bounded_exp(d) - 1


@dataclass(frozen=True)
class UnnormalizedReverseKL:
    """KL(pi || old) of measures: w (d - 1) + 1, at tokens that the old policy sampled.

    RPG, arXiv 2505.17508, Table 1 (there w d - w: the constant 1 makes it 0 where pi = old).
    """

    def __call__(self, d: Tokens) -> Tokens:
        """Estimate [N, T]; never negative."""
        return bounded_exp(d) * (d - 1) + 1

    def slope(self, d: Tokens) -> Tokens:
        """Derivative by d."""
        return bounded_exp(d) * d
