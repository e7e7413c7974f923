"""Rewards from verifiers that err: unbiased corrections, and the error rate they need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from polyopt.batch import Batch
from polyopt.errors import RecipeError
from polyopt.parts import part


def check_rates(accepts_wrong: float, rejects_right: float) -> None:
    """Raise RecipeError unless the rates leave the verifier better than chance."""
    if min(accepts_wrong, rejects_right) < 0 or accepts_wrong + rejects_right >= 1:
        raise RecipeError(
            f"verifier error rates {accepts_wrong} (accepts a wrong answer) and {rejects_right} "
            "(rejects a right one): both must be at least 0, and their sum below 1."
        )


@part("rewards.shaping")
@dataclass(frozen=True)
class BackwardCorrection:
    """r = (R - rho0) / max(1 - rho0 - rho1, least): its mean given the truth is the truth.

    Meant for advantages without division by the group's deviation: a z-score undoes any affine map.
    "Reinforcement Learning with Verifiable yet Noisy Rewards under Imperfect Verifiers",
    arXiv 2510.00915, section 3 and appendix B.

    Attributes:
        accepts_wrong: rho0, probability that a wrong answer gets 1.
        rejects_right: rho1, probability that a right answer gets 0.
        least: Lower bound of the divisor.
    """

    accepts_wrong: float = 0.1
    rejects_right: float = 0.2
    least: float = 1e-3

    def __post_init__(self) -> None:
        check_rates(self.accepts_wrong, self.rejects_right)

    def __call__(self, batch: Batch) -> Batch:
        """The batch with corrected rewards."""
        scale = max(1 - self.accepts_wrong - self.rejects_right, self.least)
        return batch.replace(rewards=(batch.rewards - self.accepts_wrong) / scale)


@dataclass
class FalseNegativeRate:
    """Running estimate of rho1 from appeals: rejected rollouts judged again by a better verifier.

    With a share q of the rejected appealed, FN = flips / q,
    estimate = (FN + prior_flips) / (FN + accepted + prior_flips + prior_accepted), smoothed by
    rate <- keep rate + (1 - keep) estimate. arXiv 2510.00915, appendix B.

    Attributes:
        rate: Current rho1.
        keep: Weight of the past.
        prior_flips: Pseudo-count of false negatives.
        prior_accepted: Pseudo-count of accepted rollouts.
    """

    rate: float = 0.2
    keep: float = 0.9
    prior_flips: float = 1e-5
    prior_accepted: float = 1e-5
    appeals: int = field(default=0, init=False, repr=False)

    def estimate(self, accepted: float, flips: float, share: float) -> float:
        """rho1 from one batch: rollouts accepted, appeals won, share of the rejected appealed."""
        missed = flips / share
        prior = self.prior_flips + self.prior_accepted
        return (missed + self.prior_flips) / (missed + accepted + prior)

    def observe(self, accepted: float, flips: float, share: float) -> float:
        """Move the rate towards one batch's estimate; returns it."""
        self.appeals += 1
        new = self.estimate(accepted, flips, share)
        self.rate = self.keep * self.rate + (1 - self.keep) * new
        return self.rate

    def state_dict(self) -> dict[str, Any]:
        """The rate and how often it was updated."""
        return {"rate": self.rate, "appeals": self.appeals}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.rate, self.appeals = state["rate"], state["appeals"]
