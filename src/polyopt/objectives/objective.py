"""`Objective`: the loss of a recipe as a function of log-probabilities, made of separate parts."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Bool
from torch import Tensor

from polyopt.batch import Batch
from polyopt.objectives.aggregation import token_mean
from polyopt.objectives.protocol import (
    Aggregation,
    Evaluation,
    Loss,
    Penalty,
    Ratio,
    Surrogate,
    TokenLoss,
    Tokens,
    TrustRegion,
)
from polyopt.objectives.ratios import token_ratio
from polyopt.objectives.surrogates import PolicyGradient
from polyopt.parts import info_of, walk


@dataclass(frozen=True)
class Objective:
    """The objective field of a recipe.

    `loss = sum(coefficients * (weights * surrogate + penalty_weights * penalties))`, where the
    surrogate has passed through the trust regions. Coefficients are constants of the whole
    optimizer batch, so cutting the batch into micro-batches or ranks changes nothing.

    Attributes:
        ratio: Level of the importance ratio.
        surrogate: The policy-gradient term.
        trust_region: Chain of parts that limit the step.
        kl: Penalty on the distance to the reference policy.
        entropy: Entropy bonus.
        value: Loss of the value head.
        aggregation: How token losses are summed up.
    """

    ratio: Ratio = token_ratio
    surrogate: Surrogate = field(default_factory=PolicyGradient)
    trust_region: tuple[TrustRegion, ...] = ()
    kl: Penalty | None = None
    entropy: Penalty | None = None
    value: Penalty | None = None
    aggregation: Aggregation = token_mean

    @property
    def needs(self) -> frozenset[str]:
        """Columns and evaluation fields that some part of the objective reads."""
        infos = (info_of(item) for _, item in walk(self))
        return frozenset(name for info in infos if info for name in info.needs)

    @property
    def coupled(self) -> bool:
        """Whether some part's loss at one row depends on another row's log-probabilities."""
        parts = (self.ratio, self.surrogate, *self.trust_region, *self.penalties)
        return any(getattr(part, "coupled", False) for part in parts)

    @property
    def penalties(self) -> tuple[Penalty, ...]:
        """The penalties that are there."""
        return tuple(p for p in (self.kl, self.entropy, self.value) if p is not None)

    def prepare(self, batch: Batch) -> Batch:
        """The whole optimizer batch with its `coefficients`; do this before cutting it."""
        return batch.replace(coefficients=self.aggregation(batch))

    def __call__(self, evaluation: Evaluation, batch: Batch) -> Loss:
        """Scalar loss and metrics of a prepared batch, or of a micro-batch cut from one.

        Whatever stands at tokens that don't train (NaN and inf too) reaches neither the loss nor
        any gradient: it is replaced before the first exp or log.
        """
        if "coefficients" not in batch:
            batch = self.prepare(batch)
        mask = batch.loss_mask
        evaluation, batch = _sanitised(evaluation, batch, mask)
        log_ratio = self.ratio(evaluation.logp, batch)
        surrogate = self.surrogate(log_ratio, evaluation, batch)
        whole, token_loss = _split(surrogate, evaluation.logp)
        for limit in self.trust_region:
            token_loss = limit(token_loss, log_ratio, evaluation, batch)
        weights = batch.columns.get("weights")
        total = token_loss.loss if weights is None else token_loss.loss * weights
        metrics = dict(token_loss.metrics)
        for penalty in self.penalties:
            added = penalty(evaluation, batch)
            scale = batch.columns.get("penalty_weights", 1.0)
            total = total + penalty.coefficient * scale * added.loss
            metrics |= added.metrics
        loss = whole + (batch["coefficients"] * total.masked_fill(~mask, 0.0)).sum()
        detached = {name: value.detach() for name, value in metrics.items()}
        return Loss(loss, detached, log_ratio.detach())


def _split(surrogate: TokenLoss | Loss, logp: Tokens) -> tuple[Tensor, TokenLoss]:
    """A surrogate's own scalar, and the token losses that are yet to be aggregated."""
    if isinstance(surrogate, Loss):
        return surrogate.loss, TokenLoss(torch.zeros_like(logp), surrogate.metrics)
    return logp.new_zeros(()), surrogate


def _sanitised(
    evaluation: Evaluation, batch: Batch, mask: Bool[Tensor, "N T"]
) -> tuple[Evaluation, Batch]:
    """Evaluation and batch with 0 at every token that doesn't train."""

    def clean(values: Tokens) -> Tokens:
        return values.masked_fill(~mask, 0.0)

    cleaned = {
        name: clean(column)
        for name, column in batch.columns.items()
        if column.is_floating_point() and column.shape[:2] == mask.shape and column.dim() == 2
    }
    return Evaluation(
        logp=clean(evaluation.logp),
        entropy=None if evaluation.entropy is None else clean(evaluation.entropy),
        values=None if evaluation.values is None else clean(evaluation.values),
        uniform_value=None if evaluation.uniform_value is None else clean(evaluation.uniform_value),
    ), batch.replace(**cleaned)
