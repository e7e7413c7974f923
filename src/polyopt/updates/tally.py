"""`Tally`: losses and metrics of the parts of a batch, gathered into those of the whole."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from polyopt.batch import Batch
from polyopt.objectives.protocol import Evaluation, Loss
from polyopt.updates.boundary_record import BoundaryRecord
from polyopt.updates.protocol import Metrics
from polyopt.updates.staleness import drift, sampler_gap


class TokenMeans:
    """Means over trained tokens, gathered over micro-batches; NaN means "doesn't apply here"."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = {}
        self.counts: dict[str, int] = {}

    def add(self, metrics: Mapping[str, Tensor], mask: Tensor) -> None:
        """Take in the per-token values of one micro-batch."""
        for name, value in metrics.items():
            counted = mask & ~value.isnan()
            total = float(value.masked_fill(~counted, 0.0).sum())
            self.sums[name] = self.sums.get(name, 0.0) + total
            self.counts[name] = self.counts.get(name, 0) + int(counted.sum())

    def means(self) -> Metrics:
        """Mean of each metric over the tokens it applies to."""
        return {name: total / max(self.counts[name], 1) for name, total in self.sums.items()}


class Tally:
    """Losses and metrics of the parts of a batch; tells the record what it is to note.

    Attributes:
        version: Of the weights whose gradient is taken.
        record: Takes in each part too, if there is one.
    """

    def __init__(self, version: int, record: BoundaryRecord | None = None) -> None:
        self.version, self.record = version, record
        self.total, self.means = 0.0, TokenMeans()

    def add(self, part: Batch, loss: Loss, evaluation: Evaluation) -> None:
        """Take in a part whose gradient is known; `evaluation.logp.grad` may be dL/dlogp."""
        self.total += float(loss.loss.detach())
        gap = sampler_gap(part)
        distances = {} if gap is None else {"sampler_gap": gap.abs()}
        distances |= drift(evaluation.logp, part, self.version)
        self.means.add(dict(loss.metrics) | distances, part.loss_mask)
        if self.record is not None:
            self.record.note(part, loss.log_ratio, evaluation.logp.grad)

    def metrics(self) -> Metrics:
        """The loss of the whole, and means over its tokens."""
        return {"loss": self.total, **self.means.means()}
