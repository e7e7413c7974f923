"""`Learner`: the exact gradient of an objective over a whole batch, in micro-batches.

Two routes, equal to floating-point noise. *One pass*: the objective is evaluated on each
micro-batch, and the losses add up because the aggregation coefficients belong to the whole batch.
*Through the boundary*: the loss is differentiated with respect to the log-probabilities of the
whole batch at once, and `G = dL/dlogp` is then pushed through the model micro-batch by
micro-batch. The second works for any coupling between tokens, rollouts or groups.
"""

from __future__ import annotations

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


class Learner:
    """A policy, its objective and its optimizer.

    Attributes:
        record: Takes in what passes the log-probability boundary, if anybody wants to know.
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
        """Objective and backward on each micro-batch of a prepared batch."""
        total, means = 0.0, TokenMeans()
        for rows in self.policy.micro_batches(batch, self.micro_tokens):
            part = batch.select(rows).trim()
            evaluation = self.policy.evaluate(part, self.distribution, self.want)
            part = _with_old(part, evaluation.logp)
            loss = self.objective(evaluation, part)
            if self.record is not None and evaluation.logp.requires_grad:
                evaluation.logp.retain_grad()
            if loss.loss.requires_grad:
                loss.loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.loss.detach())
            means.add(dict(loss.metrics) | self._distances(evaluation, part), part.loss_mask)
            self._note(part, loss, evaluation)
        return {"loss": total, **means.means()}

    def gradient_through_boundary(self, batch: Batch) -> Metrics:
        """dL/dlogp over the whole prepared batch, then backward through the model in pieces."""
        detached = self.policy.evaluate_all(batch, self.distribution, self.want, self.micro_tokens)
        leaves = Evaluation(**{n: v.clone().requires_grad_() for n, v in _tensors(detached)})
        batch = _with_old(batch, detached.logp)
        loss = self.objective(leaves, batch)
        if loss.loss.requires_grad:
            loss.loss.backward()  # type: ignore[no-untyped-call]
            for rows in self.policy.micro_batches(batch, self.micro_tokens):
                self._push(batch.select(rows).trim(), leaves, rows)
        means = TokenMeans()
        means.add(dict(loss.metrics) | self._distances(detached, batch), batch.loss_mask)
        self._note(batch, loss, leaves)
        return {"loss": float(loss.loss.detach()), **means.means()}

    def _note(self, part: Batch, loss: Loss, evaluation: Evaluation) -> None:
        """Tell the record of a (micro-)batch whose gradient at the boundary is known."""
        if self.record is not None:
            self.record.note(part, loss.log_ratio, evaluation.logp.grad)

    def _push(self, part: Batch, leaves: Evaluation, rows: Tensor) -> None:
        """Backward of sum(output * gradient at the boundary) for one micro-batch."""
        grads = {n: v.grad[rows, : part.width] for n, v in _tensors(leaves) if v.grad is not None}
        if not any(bool(grad.any()) for grad in grads.values()):
            return
        evaluation = self.policy.evaluate(part, self.distribution, self.want)
        outputs = [(value, grads[n]) for n, value in _tensors(evaluation) if n in grads]
        torch.autograd.backward([v for v, _ in outputs], [g for _, g in outputs])

    def _distances(self, evaluation: Evaluation, batch: Batch) -> dict[str, Tensor]:
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


def _with_old(batch: Batch, logp: Tensor) -> Batch:
    """The batch with `logp_old`: its own column, or the current values if it is on-policy."""
    return batch if "logp_old" in batch else batch.replace(logp_old=logp.detach())


def _rows_share_rollouts(batch: Batch) -> bool:
    return len(torch.unique(batch.rollout)) < len(batch)
