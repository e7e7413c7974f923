"""Weighted sums of advantages."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from polyopt.advantages.protocol import AdvantagePart
from polyopt.batch import Batch
from polyopt.parts import part


@dataclass(frozen=True)
class Member:
    """One summand of a mixture.

    Attributes:
        name: What its contribution is called in logs.
        weight: Its factor.
        parts: Estimator and shaping, applied in order.
    """

    name: str
    weight: float
    parts: tuple[AdvantagePart, ...]


@part("advantages.estimator")
@dataclass(frozen=True)
class Mixture:
    """A = sum_k weight_k A_k, each A_k by its own estimator and shaping.

    Members that begin with the same parts share their result: what is equal is computed once.
    Each weighted summand is logged under its name.
    """

    members: tuple[Member, ...] = ()

    def provide(self, batch: Batch) -> dict[str, Tensor]:
        """The weighted summand of each member, as `advantages/NAME` [N, T]."""
        done: list[tuple[tuple[AdvantagePart, ...], Tensor]] = []
        summands = {}
        for member in self.members:
            credit = self._credit(member.parts, batch, done)
            summands[f"advantages/{member.name}"] = member.weight * credit
        return summands

    def __call__(self, advantages: Float[Tensor, "N T"], batch: Batch) -> Float[Tensor, "N T"]:
        """Advantages [N, T]."""
        names = [f"advantages/{member.name}" for member in self.members]
        have = batch.columns if set(names) <= set(batch.columns) else self.provide(batch)
        return torch.stack([torch.zeros_like(advantages), *(have[name] for name in names)]).sum(0)

    def _credit(
        self,
        parts: tuple[AdvantagePart, ...],
        batch: Batch,
        done: list[tuple[tuple[AdvantagePart, ...], Tensor]],
    ) -> Float[Tensor, "N T"]:
        """Result of a chain of parts; `done` holds the chains that have been run."""
        if not parts:
            return torch.zeros(
                batch.mask.shape, dtype=batch.rewards.dtype, device=batch.mask.device
            )
        for chain, result in done:
            if chain == parts:
                return result
        before = self._credit(parts[:-1], batch, done)
        result = parts[-1](before, batch).masked_fill(~batch.mask, 0.0)
        done.append((parts, result))
        return result
