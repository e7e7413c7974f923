"""Trust regions on the tokens that drive entropy down: those where credit and likelihood agree.

cov_t = (A_t - mean A) (logp_t - mean logp) over the trained tokens of the batch. Its mean is, up to
a factor, the fall of the policy's entropy (arXiv 2505.22617, section 3).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from polyopt.batch import Batch
from polyopt.draws import uniforms
from polyopt.objectives.protocol import Evaluation, TokenLoss, Tokens
from polyopt.objectives.trust_regions import plus
from polyopt.parts import part

Mask = Bool[Tensor, "N T"]


def covariance(logp: Tokens, batch: Batch) -> Tokens:
    """cov_t [N, T]; 0 at tokens that don't train."""
    mask = batch.loss_mask
    return (_centred(batch["advantages"], mask) * _centred(logp.detach(), mask)).masked_fill(
        ~mask, 0
    )


def first_by(key: Tokens, among: Mask, count: int) -> Mask:
    """The `count` tokens of a mask with the smallest keys; all if there are fewer."""
    order = key.masked_fill(~among, torch.inf).flatten().argsort(stable=True)[:count]
    chosen = torch.zeros_like(among.flatten())
    chosen[order] = True
    return chosen.view_as(among) & among


def _centred(values: Tokens, mask: Mask) -> Tokens:
    held = values.masked_fill(~mask, 0.0)
    return held - held.sum() / mask.sum().clamp(min=1)


@part("objective.trust_region", needs={"advantages", "logp_old"})
@dataclass(frozen=True)
class ClipCov:
    """Silences a few tokens drawn at random among those of high covariance.

    Candidates have low < cov < high and aren't clipped already (their surrogate's `clip/` metrics).
    max(int(share * trained tokens), 1) of them lose their loss and stay in the denominator. The
    draws are those of `polyopt.draws`.

    Clip-Cov, arXiv 2505.22617, section 4.

    Attributes:
        share: Share of the trained tokens that is silenced at most.
        low: Least covariance.
        high: Largest covariance.
    """

    share: float = 2e-4
    low: float = 1.0
    high: float = 5.0
    coupled = True

    def budget(self, batch: Batch) -> int:
        """How many tokens are silenced at most; at least 1."""
        return max(int(self.share * int(batch.loss_mask.sum())), 1)

    def candidates(self, token_loss: TokenLoss, logp: Tokens, batch: Batch) -> Mask:
        """Tokens that may be silenced, [N, T]."""
        cov, mask = covariance(logp, batch), batch.loss_mask
        clipped = [v for name, v in token_loss.metrics.items() if name.startswith("clip/")]
        free = mask & (sum(clipped, torch.zeros_like(cov)) == 0)
        return free & (cov > self.low) & (cov < self.high)

    def __call__(
        self, token_loss: TokenLoss, log_ratio: Tokens, evaluation: Evaluation, batch: Batch
    ) -> TokenLoss:
        """Token losses [N, T]; logs the share of silenced tokens."""
        among = self.candidates(token_loss, evaluation.logp, batch)
        out = first_by(uniforms(batch), among, self.budget(batch))
        metrics = {**token_loss.metrics, "mask/covariance": out.to(log_ratio.dtype)}
        return TokenLoss(token_loss.loss.masked_fill(out, 0.0), metrics)


@part("objective.trust_region", needs={"advantages", "logp_old"})
@dataclass(frozen=True)
class KLCov:
    """Adds coefficient * |logp - logp_old| at the tokens of highest covariance.

    max(int(share * trained tokens), 1) of them. The paper has no clip beside it: the surrogate is
    then `ImportanceWeighted`. At logp = logp_old the penalty has no gradient.

    KL-Cov, arXiv 2505.22617, section 4.

    Attributes:
        share: Share of the trained tokens that is penalised.
        coefficient: Factor of the penalty.
    """

    share: float = 2e-3
    coefficient: float = 1.0
    coupled = True

    def chosen(self, logp: Tokens, batch: Batch) -> Mask:
        """Tokens that are penalised, [N, T]."""
        count = max(int(int(batch.loss_mask.sum()) * self.share), 1)
        return first_by(-covariance(logp, batch), batch.loss_mask, count)

    def __call__(
        self, token_loss: TokenLoss, log_ratio: Tokens, evaluation: Evaluation, batch: Batch
    ) -> TokenLoss:
        """Token losses [N, T]; logs the distance at penalised tokens."""
        distance = (evaluation.logp - batch["logp_old"]).abs()
        held = distance.masked_fill(~self.chosen(evaluation.logp, batch), 0.0)
        return plus(token_loss, self.coefficient * held, kl_cov=held)
