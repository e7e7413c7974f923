"""Slow-fast policy optimization: look ahead, step back, then step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polyopt.batch import Batch
from polyopt.parts import part
from polyopt.updates.protocol import GradientSource, Metrics


@part("updates.rule", needs={"entropy"})
@dataclass
class SlowFast:
    """K fast steps, then theta = theta_0 + alpha (theta_K - theta_0), then one slow step.

    Optimizer moments run through all K + 1 steps; repositioning edits weights only. Once the
    batch's entropy leaves its recent mean by `threshold` deviations (window full), alpha is 0 from
    the next batch on and every batch takes one plain step.

    SFPO, arXiv 2510.04072, algorithm 1. The paper's K, alpha and window aren't stated in the
    sources at hand; the defaults are ours.

    Attributes:
        fast_steps: K.
        alpha: Share of the fast path that is kept.
        window: Batches over which entropy is compared.
        threshold: Deviations at which the fast steps end for good.
    """

    fast_steps: int = 3
    alpha: float = 0.8
    window: int = 5
    threshold: float = 1.5
    entropies: list[float] = field(default_factory=list, init=False, repr=False)
    stopped: bool = field(default=False, init=False, repr=False)

    @property
    def steps(self) -> int:
        """Optimizer steps per batch of rollouts."""
        return 1 if self.stopped or self.alpha == 0 else self.fast_steps + 1

    def __call__(
        self, learner: GradientSource, batch: Batch, draws: np.random.Generator
    ) -> list[Metrics]:
        """Metrics of each optimizer step, fast ones first."""
        steps = []
        if self.steps > 1:
            start = learner.weights()
            for _ in range(self.fast_steps):
                metrics = learner.gradient(batch)
                steps.append(metrics | learner.apply())
            learner.interpolate(start, self.alpha)
        metrics = learner.gradient(batch)
        steps.append(metrics | learner.apply())
        self.watch(float(batch["entropy"][batch.mask].mean()) if batch.mask.any() else 0.0)
        return steps

    def watch(self, entropy: float) -> float:
        """Note a batch's mean token entropy (nats), and stop the fast steps if it left its band.

        Returns its distance from the window's mean in the window's (population) deviations.
        """
        self.entropies = [*self.entropies, entropy][-self.window :]
        mean, deviation = float(np.mean(self.entropies)), float(np.std(self.entropies))
        distance = (entropy - mean) / (deviation + 1e-8)
        if len(self.entropies) == self.window and abs(distance) >= self.threshold:
            self.stopped = True
        return distance

    def state_dict(self) -> dict[str, Any]:
        """Recent entropies, and whether the fast steps have ended."""
        return {"entropies": self.entropies, "stopped": self.stopped}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.entropies, self.stopped = list(state["entropies"]), state["stopped"]
