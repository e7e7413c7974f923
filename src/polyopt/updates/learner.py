"""`Learner`: the exact gradient of an objective over a whole batch, in micro-batches.

Two routes, equal to floating-point noise. *One pass*: the objective is evaluated on each
micro-batch, and the losses add up because the aggregation coefficients belong to the whole batch.
*Through the boundary*: the loss is differentiated with respect to the log-probabilities of the
whole batch at once, and `G = dL/dlogp` is then pushed through the model micro-batch by
micro-batch. The second works for any coupling between tokens, rollouts or groups. Either way a
`Point` is what the loss is differentiated at: that of a micro-batch, or that of the whole batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Bool
from torch import Tensor

from polyopt.batch import Batch
from polyopt.distribution import Distribution
from polyopt.models.policy import Policy
from polyopt.objectives.objective import Objective
from polyopt.objectives.protocol import Evaluation, Loss
from polyopt.updates.boundary import Point, boundary_gradients, live_rows, push, with_old
from polyopt.updates.boundary_record import BoundaryRecord
from polyopt.updates.optimizers import AdamW, Schedule, scheduled
from polyopt.updates.protocol import Metrics
from polyopt.updates.staleness import staleness, with_fresh
from polyopt.updates.tally import Tally

TRUSTED_GAP = 1e-4
"""Nats between sampler and trainer up to which a loss may be differentiated at the sampler's."""


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
        self._begin()
        coupled = self.objective.coupled or _rows_share_rollouts(batch)
        known = self.trusts_sampler and self._on_policy(batch)
        route = self.gradient_through_boundary if coupled or known else self.gradient_in_one_pass
        return route(batch) | staleness(batch, self.policy.version)

    def gradient_in_one_pass(self, batch: Batch) -> Metrics:
        """Objective and backward on each micro-batch of a prepared batch.

        Rows that are sure to have no gradient go through the objective, but not through the model.
        """
        tally = Tally(self.policy.version, self.record)
        live = self._rows_to_run(batch)
        if not bool(live.all()):
            idle = batch.select((~live).nonzero()[:, 0])
            self._differentiate(idle, Point.of_sampler(idle), tally)
        for rows in self._splits(batch, live):
            part = batch.select(rows).trim()
            self._differentiate(part, Point.waiting(self._evaluate(part)), tally)
        return tally.metrics()

    def gradient_through_boundary(self, batch: Batch) -> Metrics:
        """dL/dlogp over the whole prepared batch, then backward through the model in pieces."""
        point, tally = self._point(batch), Tally(self.policy.version, self.record)
        gap = self._differentiate(batch, point, tally)
        if point.sampled and gap > TRUSTED_GAP:
            self.trusts_sampler = False
            self._begin()
            return self.gradient_through_boundary(batch)
        return tally.metrics()

    def _begin(self) -> None:
        """No gradient is set, and none is noted."""
        self.optimizer.zero_grad(set_to_none=True)
        if self.record is not None:
            self.record.forget()

    def _point(self, batch: Batch) -> Point:
        """Where the loss of a whole batch is differentiated.

        Its log-probabilities take a forward pass of their own only where they are neither the
        sampler's, which on-policy are the policy's own up to rounding, nor those of a single
        micro-batch, whose graph can wait for its gradient.
        """
        if self.trusts_sampler and self._on_policy(batch):
            return Point.of_sampler(batch)
        if len(self._splits(batch, batch.mask.any(1))) == 1:
            return Point.waiting(self._evaluate(batch))
        return Point(
            self.policy.evaluate_all(batch, self.distribution, self.want, self.micro_tokens)
        )

    def _differentiate(self, batch: Batch, point: Point, tally: Tally) -> float:
        """dL/dlogp at a point, pushed through the model; rows without gradient aren't run.

        At the sampler's point, what is reported of the tokens is what the policy says of them: its
        log-probabilities where it was run, NaN elsewhere.

        Returns:
            The largest distance between the point's log-probabilities and the policy's, in nats.
        """
        batch = with_old(batch, point.values.logp)
        loss, leaves = self._loss_at(batch, point)
        found = torch.full_like(leaves.logp, math.nan)
        grads = boundary_gradients(leaves)
        for rows, forward in self._forwards(batch, point, leaves):
            width = forward.logp.shape[1]
            push(forward, {name: grad[rows, :width] for name, grad in grads.items()})
            found[rows, :width] = forward.logp.detach()
        tally.add(batch.replace(logp_old=found) if point.sampled else batch, loss, leaves)
        gaps = (found - leaves.logp.detach())[batch.mask].abs().nan_to_num(0.0)
        return float(gaps.max()) if len(gaps) else 0.0

    def _loss_at(self, batch: Batch, point: Point) -> tuple[Loss, Evaluation]:
        """The loss at a point, and the leaves that hold its gradient there."""
        leaves = point.leaves()
        loss = self.objective(leaves, batch)
        if loss.loss.requires_grad:
            loss.loss.backward()  # type: ignore[no-untyped-call]
        return loss, leaves

    def _forwards(
        self, batch: Batch, point: Point, leaves: Evaluation
    ) -> Iterator[tuple[Tensor, Evaluation]]:
        """Forwards with a graph: the one that waits, or one of each micro-batch of live rows."""
        if point.graph is not None:
            yield torch.arange(len(batch), device=leaves.logp.device), point.graph
            return
        grad = leaves.logp.grad
        for rows in self._splits(batch, live_rows(leaves)):
            part = batch.select(rows).trim()
            foreseen = None
            if grad is not None:
                foreseen = leaves.logp.detach()[rows, : part.width], grad[rows, : part.width]
            yield rows, self._evaluate(part, foreseen)

    def _evaluate(self, part: Batch, foreseen: tuple[Tensor, Tensor] | None = None) -> Evaluation:
        return self.policy.evaluate(part, self.distribution, self.want, foreseen)

    def _splits(self, batch: Batch, live: Bool[Tensor, " N"]) -> list[Tensor]:
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

    def _rows_to_run(self, batch: Batch) -> Bool[Tensor, " N"]:
        """Rows of an uncoupled batch, but for those that on-policy are sure to have gradient 0."""
        if not self._on_policy(batch):
            return torch.ones_like(batch.mask[:, 0])
        point = Point.of_sampler(batch)
        _, leaves = self._loss_at(with_old(batch, point.values.logp), point)
        return live_rows(leaves)

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


def _rows_share_rollouts(batch: Batch) -> bool:
    return len(torch.unique(batch.rollout)) < len(batch)
