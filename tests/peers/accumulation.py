"""Loss and gradient as polyopt's learner accumulates them, with no model in between."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from polyopt.batch import Batch
from polyopt.distribution import Distribution
from polyopt.objectives.objective import Objective
from polyopt.objectives.protocol import Evaluation
from polyopt.updates.learner import Learner
from polyopt.updates.optimizers import AdamW, Constant
from tests.peers.random_batches import Sample


@dataclass
class TablePolicy:
    """A policy whose parameters are the log-probabilities themselves, one row per rollout.

    The gradient of its parameters is dL/dlogp, whichever way the learner takes through it. It is
    evaluated in a given number of micro-batches of shuffled rows.
    """

    table: nn.Parameter
    pieces: int
    version: int = 0
    evaluated: list[int] = field(default_factory=list)

    def trainable_parameters(self) -> list[nn.Parameter]:
        return [self.table]

    def micro_batches(self, batch: Batch, micro_tokens: int) -> list[Tensor]:
        shuffled = torch.randperm(len(batch), generator=torch.Generator().manual_seed(self.pieces))
        return list(shuffled.tensor_split(self.pieces))

    def evaluate(self, batch: Batch, *_: object) -> Evaluation:
        self.evaluated.append(len(batch))
        return Evaluation(self.table[batch.rollout, : batch.width])

    def evaluate_all(self, batch: Batch, *_: object) -> Evaluation:
        return Evaluation(self.table[batch.rollout].detach())


@dataclass(frozen=True)
class LossAndGradient:
    """A loss and its gradient with respect to the log-probabilities [N, T]."""

    loss: Tensor
    gradient: Tensor


def accumulated(objective: Objective, made: Sample, count: int = 1) -> LossAndGradient:
    """What `Learner.gradient` gives with gradient accumulation over `count` micro-batches."""
    policy = TablePolicy(nn.Parameter(made.logp.clone()), count)
    learner = Learner(
        policy,  # type: ignore[arg-type]
        objective,
        AdamW(),
        Constant(),
        distribution=Distribution(),
        micro_tokens=1,
        total_steps=1,
    )
    metrics = learner.gradient(made.batch)
    assert len(policy.evaluated) == count
    gradient = policy.table.grad
    assert gradient is not None
    return LossAndGradient(torch.tensor(metrics["loss"], dtype=torch.float64), gradient)


def differentiated(loss: Tensor, logp: Tensor) -> LossAndGradient:
    """A peer's loss and its gradient with respect to a leaf."""
    (gradient,) = torch.autograd.grad(loss, logp)
    return LossAndGradient(loss.detach(), gradient)
