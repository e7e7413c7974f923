"""The advantages closest to given ones that keep an order: a quadratic program per group."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from polyopt.groups import group_count, group_sum

TOLERANCE = 1e-10
"""The ascent ends when no multiplier's gradient is larger than this."""


@dataclass(frozen=True)
class OrderConstraints:
    """Pairs (low, high) of rows of one group with a_low + margin <= a_high.

    Attributes:
        low: Row of the lower side of each pair. [C]
        high: Row of its higher side. [C]
        margin: Distance that they keep.
        rounds: Most steps of the dual ascent.
    """

    low: Int[Tensor, " C"]
    high: Int[Tensor, " C"]
    margin: float = 0.0
    rounds: int = 20_000

    def violation(self, a: Float[Tensor, " N"]) -> Float[Tensor, " C"]:
        """By how much each pair breaks its order."""
        return a[self.low] + self.margin - a[self.high]

    def pushed(self, a: Float[Tensor, " N"], force: Float[Tensor, " C"]) -> Float[Tensor, " N"]:
        """a - D' force: the lower side of each pair goes down, the higher side up."""
        return a.index_add(0, self.low, -force).index_add(0, self.high, force)

    def project(self, target: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
        """argmin |a - target|^2 subject to the order; sums of groups stay.

        Accelerated ascent on the multipliers of all pairs at once, started again whenever the
        momentum points downhill. If the order has no solution, what comes back still breaks it.
        """
        force = target.new_zeros(len(self.low))
        if not len(force):
            return target
        ends = torch.bincount(torch.cat([self.low, self.high]))
        step, ahead, momentum = 1 / (2.0 * float(ends.max())), force, 1.0
        for _ in range(self.rounds):  # each step needs the one before it
            gradient = self.violation(self.pushed(target, ahead))
            new = (ahead + step * gradient).clamp(min=0.0)
            if float((new - ahead).abs().max()) < TOLERANCE * step:
                return self.pushed(target, new)
            if float(((new - force) * gradient).sum()) < 0:
                momentum = 1.0
            following = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
            ahead = new + (momentum - 1) / following * (new - force)
            force, momentum = new, following
        return self.pushed(target, force)

    def project_into_ball(
        self, target: Float[Tensor, " N"], index: Int[Tensor, " N"], halvings: int = 60
    ) -> Float[Tensor, " N"]:
        """The same with |a|^2 <= n in each group of n: a group that is too long is shrunk first.

        Shrinking the target by 1 + mu is what the multiplier mu of the ball does; mu is bisected.
        """
        room = group_count(index, target)
        free = self.project(target)
        long = group_sum(free.square(), index) > room * (1 + 1e-12)
        if not long.any():
            return free
        low, high = torch.zeros_like(target), torch.ones_like(target)  # shares of the target kept
        for _ in range(halvings):  # each halving needs the one before it
            share = (low + high) / 2
            a = self.project(torch.where(long, share, 1.0) * target)
            outside = group_sum(a.square(), index) > room
            low, high = torch.where(outside, low, share), torch.where(outside, share, high)
        return self.project(torch.where(long, low, 1.0) * target)
