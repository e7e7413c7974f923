"""`BoundaryRecord`: what passed the log-probability boundary in a training step's updates."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from polyopt.batch import Batch
from polyopt.divergences import bounded_exp
from polyopt.objectives.protocol import Tokens
from polyopt.updates.protocol import Metrics
from polyopt.updates.staleness import sampler_gap

QUANTILES = {"p01": 0.01, "p10": 0.1, "p50": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass(frozen=True)
class Passage:
    """One micro-batch at the boundary; `rows` are its rows' places in the step's batch."""

    rows: Int[Tensor, " N"]
    mask: Bool[Tensor, "N T"]
    log_ratio: Tokens
    gap: Tokens | None
    gradient: Tokens | None


@dataclass
class BoundaryRecord:
    """Tokens that optimizer steps were taken with: their ratios, gaps and gradients of the loss.

    A gradient is noted when it is computed and kept once a step was taken with it, so the probes
    of a line search leave no trace.
    """

    _noted: list[Passage] = field(default_factory=list)
    _kept: list[Passage] = field(default_factory=list)

    def numbered(self, batch: Batch) -> Batch:
        """The batch with a column `row`, by which its parts are told apart."""
        return batch.replace(row=torch.arange(len(batch), device=batch.mask.device))

    def forget(self) -> None:
        """A new gradient begins: what was noted and not kept is dropped."""
        self._noted = []

    def note(self, part: Batch, log_ratio: Tokens | None, gradient: Tokens | None) -> None:
        """Take in a micro-batch.

        Args:
            part: Its rows, with `logp_old`.
            log_ratio: Logarithm of the importance ratio, as the objective sees it.
            gradient: Of the loss in the tokens' log-probabilities; None where it has none.
        """
        if "row" in part and log_ratio is not None:
            self._noted.append(
                Passage(part["row"], part.loss_mask, log_ratio, sampler_gap(part), gradient)
            )

    def keep(self) -> None:
        """A step was taken with what was noted."""
        self._kept += self._noted
        self._noted = []

    def metrics(self) -> Metrics:
        """Quantiles over all tokens of the steps: `ratio/*`, and `sampler_gap/*` in nats.

        `ratio/max` is the largest ratio, `sampler_gap/max` the largest distance.
        """
        ratios = _known([p.log_ratio[p.mask] for p in self._kept])
        gaps = _known([p.gap[p.mask] for p in self._kept if p.gap is not None])
        found: Metrics = {}
        if len(ratios):
            found |= quantiles("ratio", bounded_exp(ratios))
        if len(gaps):
            found |= quantiles("sampler_gap", gaps)
            found["sampler_gap/max"] = float(gaps.abs().max())
        return found

    def columns(self, batch: Batch) -> dict[str, Tokens]:
        """Per token of the whole batch, NaN where no step was taken with it.

        `ratio` is the importance ratio at the last step with the token, `loss_weight` the sum over
        the steps of -dL/dlogp: how hard they push its log-probability up (+) or down (-).
        """
        ratio = torch.full(batch.mask.shape, math.nan, device=batch.mask.device)
        weight = torch.full_like(ratio, math.nan)
        for p in self._kept:
            place = p.rows[:, None], torch.arange(p.mask.shape[1], device=p.mask.device)
            ratio[place] = torch.where(p.mask, bounded_exp(p.log_ratio).to(ratio), ratio[place])
            if p.gradient is not None:
                pushed = weight[place].nan_to_num(0.0) - p.gradient.to(weight)
                weight[place] = torch.where(p.mask, pushed, weight[place])
        return {"ratio": ratio, "loss_weight": weight}


def quantiles(name: str, values: Float[Tensor, " M"]) -> Metrics:
    """`name/p01` to `name/p99` and `name/max`, by nearest rank, of at least one value."""
    ordered = values.sort().values
    n = len(ordered)
    places = [max(math.ceil(share * n) - 1, 0) for share in QUANTILES.values()]
    picked = ordered[torch.tensor([*places, n - 1], device=ordered.device)].tolist()
    return {f"{name}/{label}": v for label, v in zip([*QUANTILES, "max"], picked, strict=True)}


def _known(pieces: list[Tensor]) -> Float[Tensor, " M"]:
    """All values in one row, without NaN."""
    values = torch.cat(pieces).detach() if pieces else torch.zeros(0)
    return values[~values.isnan()]
