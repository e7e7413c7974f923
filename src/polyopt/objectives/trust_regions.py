"""Trust regions: what keeps the new policy near the one that a batch was sampled from."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from jaxtyping import Bool
from torch import Tensor

from polyopt.batch import Batch
from polyopt.divergences import (
    K2,
    Divergence,
    SlopedDivergence,
    UnnormalizedForwardKL,
    UnnormalizedReverseKL,
)
from polyopt.objectives.protocol import Evaluation, TokenLoss, Tokens
from polyopt.objectives.surrogates import bounded_ratio
from polyopt.parts import part


def plus(token_loss: TokenLoss, added: Tokens, **metrics: Tokens) -> TokenLoss:
    """Token losses with something added, and metrics with more of them."""
    return TokenLoss(token_loss.loss + added, {**token_loss.metrics, **metrics})


@part("objective.trust_region", needs={"advantages", "logp_old"})
@dataclass(frozen=True)
class ClipMask:
    """Drops the loss of tokens where PPO's clip would have no gradient, whatever the surrogate.

    Kept: rho < 1 + clip_high where A > 0, and 1 - clip_low <= rho < dual_clip where A <= 0. Dropped
    tokens stay in the denominator. Added last, it also drops penalties that stand before it.

    The mask M of CISPO's unified form (arXiv 2506.13585) and the dual clip of RPG's REINFORCE
    style (arXiv 2505.17508, algorithm 2, by gradient).

    Attributes:
        clip_low: The ratio is held above 1 - clip_low.
        clip_high: The ratio is held below 1 + clip_high.
        dual_clip: c > 1, or None for none.
    """

    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float | None = None

    def kept(self, log_ratio: Tokens, batch: Batch) -> Bool[Tensor, "N T"]:
        """Tokens that stay, [N, T]."""
        ratio, up = bounded_ratio(log_ratio.detach()), batch["advantages"] > 0
        cap = math.inf if self.dual_clip is None else self.dual_clip
        down = (ratio >= 1 - self.clip_low) & (ratio < cap)
        return (up & (ratio < 1 + self.clip_high)) | (~up & down)

    def __call__(
        self, token_loss: TokenLoss, log_ratio: Tokens, evaluation: Evaluation, batch: Batch
    ) -> TokenLoss:
        """Token losses [N, T]; logs the share that was dropped."""
        out = ~self.kept(log_ratio, batch)
        metrics = {**token_loss.metrics, "mask/clip": out.to(log_ratio.dtype)}
        return TokenLoss(token_loss.loss.masked_fill(out, 0.0), metrics)


@part("objective.trust_region", needs={"logp_old"})
@dataclass(frozen=True)
class StepDivergence:
    """L += coefficient * D(d), d = log rho: a differentiable penalty on the step from `old`.

    With the divergences of RPG (arXiv 2505.17508, Tables 1 and 4) its gradient is exactly that of
    coefficient * D off-policy too, which a k3 without the weight rho is not. With `K2` it is
    the penalty of PPO-EWMA (arXiv 2110.00641).

    The coefficient is the batch's column `step_coefficient` [N] where it has one: an update rule
    that adapts it writes it there (FixPO).

    Attributes:
        divergence: D.
        coefficient: Factor of the penalty.
        bound: Holds D to +-bound, without a gradient beyond (RPG's code: 10); None doesn't.
    """

    divergence: Divergence = field(default_factory=UnnormalizedReverseKL)
    coefficient: float = 1e-4
    bound: float | None = None

    def __call__(
        self, token_loss: TokenLoss, log_ratio: Tokens, evaluation: Evaluation, batch: Batch
    ) -> TokenLoss:
        """Token losses [N, T]; logs the divergence."""
        value = self.divergence(log_ratio)
        if self.bound is not None:
            value = value.clamp(-self.bound, self.bound)
        factor: float | Tensor = self.coefficient
        if "step_coefficient" in batch:
            factor = batch["step_coefficient"][:, None]
        return plus(token_loss, factor * value, kl_old=value)


@part("objective.trust_region", needs={"logp_old"})
@dataclass(frozen=True)
class StepDivergenceScore:
    """L += coefficient * sg(D'(d)) logp, d = log rho held to [log low, log high]: the same penalty
    in REINFORCE style, where bounding the ratio doesn't end the gradient.

    RPG's REINFORCE-style losses with the clipped ratio (arXiv 2505.17508, Table 2), and, with
    rho - 1 capped from above only, the policy drift of CPGD (arXiv 2505.12504).

    Attributes:
        divergence: D.
        coefficient: Factor of the penalty.
        low: Least ratio; None for no bound.
        high: Largest ratio; None for no bound.
    """

    divergence: SlopedDivergence = field(default_factory=UnnormalizedReverseKL)
    coefficient: float = 1e-4
    low: float | None = None
    high: float | None = None

    def __call__(
        self, token_loss: TokenLoss, log_ratio: Tokens, evaluation: Evaluation, batch: Batch
    ) -> TokenLoss:
        """Token losses [N, T]; logs the pull on each log-probability."""
        low = -math.inf if self.low is None else math.log(self.low)
        high = math.inf if self.high is None else math.log(self.high)
        pull = self.divergence.slope(log_ratio.detach().clamp(low, high))
        return plus(token_loss, self.coefficient * pull * evaluation.logp, step_pull=pull)


def policy_drift(coefficient: float = 0.001, cap: float = 2.0) -> StepDivergenceScore:
    """CPGD's drift (arXiv 2505.12504): coefficient * sg(min(rho - 1, cap)) logp."""
    return StepDivergenceScore(UnnormalizedForwardKL(), coefficient, high=1 + cap)


def squared_step(coefficient: float = 1.0) -> StepDivergence:
    """PPO-EWMA's penalty (arXiv 2110.00641): coefficient * (logp - logp_old)^2 / 2."""
    return StepDivergence(K2(), coefficient)
