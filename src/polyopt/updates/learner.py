"""`Learner`: the exact gradient of an objective over a whole batch, in micro-batches.

Two routes, equal to floating-point noise. *One pass*: the objective is evaluated on each
micro-batch, and the losses add up because the aggregation coefficients belong to the whole batch.
*Through the boundary*: the loss is differentiated with respect to the log-probabilities of the
whole batch at once, and `G = dL/dlogp` is then pushed through the model micro-batch by
micro-batch. The second works for any coupling between tokens, rollouts or groups.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields

import torch
from torch import Tensor

from polyopt.batch import Batch
from polyopt.distribution import Distribution
from polyopt.models.policy import Policy
from polyopt.objectives.objective import Objective
from polyopt.objectives.protocol import Evaluation, Loss
from polyopt.updates.boundary_record import BoundaryRecord
from polyopt.updates.optimizers import AdamW, Schedule, scheduled
from polyopt.updates.protocol import Metrics
from polyopt.updates.staleness import drift, sampler_gap, staleness, with_fresh

TRUSTED_GAP = 1e-4
"""Nats between sampler and trainer up to which a loss may be differentiated at the sampler's."""


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
    """Losses and metrics of the parts of a batch."""

    def __init__(self, learner: Learner) -> None:
        self.learner, self.total, self.means = learner, 0.0, TokenMeans()

    def add(self, part: Batch, loss: Loss, evaluation: Evaluation) -> None:
        """Take in a part whose gradient is known; `evaluation.logp.grad` may be dL/dlogp."""
        self.total += float(loss.loss.detach())
        distances = self.learner.distances(evaluation, part)
        self.means.add(dict(loss.metrics) | distances, part.loss_mask)
        if self.learner.record is not None:
            self.learner.record.note(part, loss.log_ratio, evaluation.logp.grad)

    def metrics(self) -> Metrics:
        """The loss of the whole, and means over its tokens."""
        return {"loss": self.total, **self.means.means()}


class Learner:
    """A policy, its objective and its optimizer.

    Attributes:
        record: Takes in what passes the log-probability boundary, if anybody wants to know.
        trusts_sampler: The sampler's log-probabilities have been the policy's own up to rounding.
    """

    def __init__(
        self,
        policy: Policy,
        objective: Objective,
        optimizer: AdamW,
        schedule: Schedule,
        *,
        distribution: Distribution,
        micro_tokens: int,
        total_steps: int,
    ) -> None:
        self.record: BoundaryRecord | None = None
        self.trusts_sampler = True
        self.policy = policy
        self.objective = objective
        self.distribution = distribution
        self.micro_tokens = micro_tokens
        self.parameters = list(policy.trainable_parameters())
        self.max_grad_norm = optimizer.max_grad_norm
        self.optimizer = optimizer.build(self.parameters)
        self.scheduler = scheduled(self.optimizer, schedule, total_steps)
        self.want = frozenset(
            name.removeprefix("evaluation:")
            for name in objective.needs
            if name.startswith("evaluation:")
        )

    def gradient(self, batch: Batch) -> Metrics:
        """Set the gradients of the objective over the whole batch; returns its metrics.

        Without a `logp_old` column the batch is on-policy, and the old log-probabilities are the
        current ones (the ratio is exactly 1).
        """
        batch = with_fresh(self.objective.prepare(batch))
        self.optimizer.zero_grad(set_to_none=True)
        if self.record is not None:
            self.record.forget()
        coupled = self.objective.coupled or _rows_share_rollouts(batch)
        route = self.gradient_through_boundary if coupled else self.gradient_in_one_pass
        return route(batch) | staleness(batch, self.policy.version)

    def gradient_in_one_pass(self, batch: Batch) -> Metrics:
        """Objective and backward on each micro-batch of a prepared batch.

        Rows that are sure to have no gradient go through the objective, but not through the model.
        """
        tally = Tally(self)
        idle = self._rows_without_gradient(batch)
        if bool(idle.any()):
            part = batch.select(idle.nonzero()[:, 0])
            point = _sampled_point(part)
            loss = self.objective(point, _with_old(part, point.logp))
            tally.add(part.replace(logp_old=torch.full_like(point.logp, math.nan)), loss, point)
        for rows in self._splits(batch, ~idle):
            part = batch.select(rows).trim()
            evaluation = self.policy.evaluate(part, self.distribution, self.want)
            part = _with_old(part, evaluation.logp)
            loss = self.objective(evaluation, part)
            if self.record is not None and evaluation.logp.requires_grad:
                evaluation.logp.retain_grad()
            if loss.loss.requires_grad:
                loss.loss.backward()  # type: ignore[no-untyped-call]
            tally.add(part, loss, evaluation)
        return tally.metrics()

    def gradient_through_boundary(self, batch: Batch) -> Metrics:
        """dL/dlogp over the whole prepared batch, then backward through the model in pieces.

        The log-probabilities at which the loss is differentiated take a forward pass of their own
        only where they are neither those of a single micro-batch, whose graph can wait for its
        gradient, nor the sampler's, which on-policy are the policy's own up to rounding.
        """
        splits = self._splits(batch, batch.mask.any(1))
        if len(splits) == 1:
            return self._boundary_of_one(batch)
        if self.trusts_sampler and self._on_policy(batch):
            metrics = self._boundary(batch, _sampled_point(batch), measure=True)
            if metrics.pop("gap") <= TRUSTED_GAP:
                return metrics
            self.trusts_sampler = False
            self.optimizer.zero_grad(set_to_none=True)
            if self.record is not None:
                self.record.forget()
        point = self.policy.evaluate_all(batch, self.distribution, self.want, self.micro_tokens)
        return self._boundary(batch, point)

    def _boundary_of_one(self, batch: Batch) -> Metrics:
        """The boundary route where one forward holds the whole batch."""
        evaluation = self.policy.evaluate(batch, self.distribution, self.want)
        leaves = _leaves(evaluation)
        batch = _with_old(batch, leaves.logp)
        loss = self.objective(leaves, batch)
        if loss.loss.requires_grad:
            loss.loss.backward()  # type: ignore[no-untyped-call]
            _push(evaluation, {n: v.grad for n, v in _tensors(leaves) if v.grad is not None})
        tally = Tally(self)
        tally.add(batch, loss, leaves)
        return tally.metrics()

    def _boundary(self, batch: Batch, point: Evaluation, *, measure: bool = False) -> Metrics:
        """The boundary route from a point that is known.

        With `measure` the policy's own log-probabilities replace the point's in what is reported,
        and the largest distance between both is reported as `gap`.
        """
        leaves = _leaves(point)
        batch = _with_old(batch, leaves.logp)
        loss = self.objective(leaves, batch)
        found = torch.full_like(leaves.logp, math.nan)
        if loss.loss.requires_grad:
            loss.loss.backward()  # type: ignore[no-untyped-call]
            grads = {n: v.grad for n, v in _tensors(leaves) if v.grad is not None}
            live = torch.stack([(grad != 0).any(1) for grad in grads.values()]).any(0)
            for rows in self._splits(batch, live):
                part = batch.select(rows).trim()
                evaluation = self.policy.evaluate(part, self.distribution, self.want)
                _push(evaluation, {n: grad[rows, : part.width] for n, grad in grads.items()})
                found[rows, : part.width] = evaluation.logp.detach()
        tally = Tally(self)
        if not measure:
            tally.add(batch, loss, leaves)
            return tally.metrics()
        tally.add(batch.replace(logp_old=found), loss, leaves)
        gap = (found - leaves.logp.detach())[batch.mask].abs().nan_to_num(0.0)
        return tally.metrics() | {"gap": float(gap.max()) if len(gap) else 0.0}

    def _splits(self, batch: Batch, live: Tensor) -> list[Tensor]:
        """Micro-batches of the live rows, as places in the batch."""
        places = live.nonzero()[:, 0]
        if len(places) == len(batch):
            return self.policy.micro_batches(batch, self.micro_tokens)
        return [
            places[rows]
            for rows in self.policy.micro_batches(batch.select(places), self.micro_tokens)
        ]

    def _on_policy(self, batch: Batch) -> bool:
        """Whether the present weights sampled every token, and logp is all that the loss reads."""
        columns = ("logp_sampler", "provenance")
        if self.want or "logp_old" in batch or any(name not in batch for name in columns):
            return False
        fresh = batch["provenance"] == self.policy.version
        return bool((fresh & batch["logp_sampler"].isfinite())[batch.mask].all())

    def _rows_without_gradient(self, batch: Batch) -> Tensor:
        """Rows [N] at which the objective of an uncoupled, on-policy batch has gradient 0."""
        if not self._on_policy(batch):
            return torch.zeros(len(batch), dtype=torch.bool, device=batch.mask.device)
        leaves = _leaves(_sampled_point(batch))
        loss = self.objective(leaves, _with_old(batch, leaves.logp)).loss
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]
        grad = leaves.logp.grad
        return torch.ones_like(batch.mask[:, 0]) if grad is None else (grad == 0).all(1)

    def distances(self, evaluation: Evaluation, batch: Batch) -> dict[str, Tensor]:
        """How far the tokens' log-probabilities are from the sampler's, in nats."""
        gap = sampler_gap(batch)
        found = {} if gap is None else {"sampler_gap": gap.abs()}
        return found | drift(evaluation.logp, batch, self.policy.version)

    def apply(self) -> Metrics:
        """Clip, step and clear the gradients; returns their norm (before clipping) and the rate.

        A gradient that isn't finite is not applied, and counted as `skipped_updates`.
        """
        limit = self.max_grad_norm if self.max_grad_norm > 0 else float("inf")
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, limit, foreach=True)
        rate = self.scheduler.get_last_lr()[0]
        finite = bool(torch.isfinite(norm))
        if finite:
            self.optimizer.step()
            self.scheduler.step()
            self.policy.version += 1
            if self.record is not None:
                self.record.keep()
        self.optimizer.zero_grad(set_to_none=True)
        return {"grad_norm": float(norm), "lr": float(rate), "skipped_updates": float(not finite)}

    def weights(self) -> list[Tensor]:
        """A copy of the trainable weights."""
        return [parameter.detach().clone() for parameter in self.parameters]

    def interpolate(self, start: Sequence[Tensor], share: float) -> None:
        """Move the trainable weights to start + share * (weights - start)."""
        with torch.no_grad():
            for parameter, origin in zip(self.parameters, start, strict=True):
                parameter.copy_(origin + share * (parameter - origin))

    def place(self, weights: Sequence[Tensor]) -> None:
        """Set the trainable weights as a step of the optimizer would: they are a new version."""
        self.interpolate(weights, 0.0)
        self.optimizer.zero_grad(set_to_none=True)
        self.policy.version += 1

    def gradients(self) -> list[Tensor]:
        """A copy of every parameter's gradient; 0 where there is none."""
        pairs = [(p, p.grad) for p in self.parameters]
        return [torch.zeros_like(p) if g is None else g.detach().clone() for p, g in pairs]

    def log_probs(self, batch: Batch) -> Tensor:
        """Log-probabilities of the batch's tokens under the present weights, no gradient."""
        found = self.policy.evaluate_all(batch, self.distribution, (), self.micro_tokens)
        return found.logp


def _tensors(evaluation: Evaluation) -> list[tuple[str, Tensor]]:
    named = [(f.name, getattr(evaluation, f.name)) for f in fields(evaluation)]
    return [(name, value) for name, value in named if value is not None]


def _leaves(point: Evaluation) -> Evaluation:
    """The same numbers as the start of a graph."""
    return Evaluation(**{n: v.detach().clone().requires_grad_() for n, v in _tensors(point)})


def _push(evaluation: Evaluation, grads: Mapping[str, Tensor]) -> None:
    """Backward of sum(output * gradient at the boundary)."""
    pairs = [(value, grads[n]) for n, value in _tensors(evaluation) if n in grads]
    pairs = [(value, grad) for value, grad in pairs if value.requires_grad]
    torch.autograd.backward([value for value, _ in pairs], [grad for _, grad in pairs])


def _sampled_point(batch: Batch) -> Evaluation:
    """The sampler's log-probabilities as an evaluation of a batch that is on-policy."""
    return Evaluation(batch["logp_sampler"].masked_fill(~batch.mask, 0.0).float())


def _with_old(batch: Batch, logp: Tensor) -> Batch:
    """The batch with `logp_old`: its own column, or the current values if it is on-policy."""
    return batch if "logp_old" in batch else batch.replace(logp_old=logp.detach())


def _rows_share_rollouts(batch: Batch) -> bool:
    return len(torch.unique(batch.rollout)) < len(batch)
