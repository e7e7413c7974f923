"""Optimizers and learning-rate schedules, as numbers of a recipe."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.optim.lr_scheduler import LambdaLR

from polyopt.parts import part


class Schedule(Protocol):
    """Factor on the learning rate at each optimizer step."""

    def __call__(self, step: int, total: int) -> float: ...


@part("updates.schedule")
@dataclass(frozen=True)
class Constant:
    """Full learning rate after `warmup` steps of linear rise."""

    warmup: int = 0

    def __call__(self, step: int, total: int) -> float:
        """Factor at optimizer step `step` (from 0)."""
        return min(1.0, (step + 1) / (self.warmup + 1))


@part("updates.schedule")
@dataclass(frozen=True)
class Cosine:
    """Linear rise over `warmup` steps, then half a cosine down to `final` of the rate."""

    warmup: int = 0
    final: float = 0.1

    def __call__(self, step: int, total: int) -> float:
        """Factor at optimizer step `step` (from 0) of `total`."""
        if step < self.warmup:
            return (step + 1) / (self.warmup + 1)
        done = min((step - self.warmup) / max(total - self.warmup, 1), 1.0)
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * done)) / 2


@part("updates.optimizer")
@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay (arXiv 1711.05101), gradients clipped by global norm.

    Attributes:
        lr: Learning rate.
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        eps: Added to the denominator.
        weight_decay: Decoupled weight decay.
        max_grad_norm: Gradients are scaled down to this norm; 0 leaves them as they are.
    """

    lr: float = 1e-5
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0

    def build(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer over some parameters, in its fused form.

        Its moments are there from the start: memory that later steps take and free isn't cut up
        around them.
        """
        trained = list(parameters)
        made = torch.optim.AdamW(
            trained,
            lr=self.lr,
            betas=(self.beta1, self.beta2),
            eps=self.eps,
            weight_decay=self.weight_decay,
            fused=True,
        )
        for parameter in trained:
            made.state[parameter] = {
                "step": torch.zeros((), device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        return made


def scheduled(optimizer: torch.optim.Optimizer, schedule: Schedule, total: int) -> LambdaLR:
    """A torch scheduler that follows a recipe's schedule over `total` optimizer steps."""
    return LambdaLR(optimizer, lambda step: schedule(step, total))
