"""`Point`: where on the log-probability boundary a loss is differentiated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool
from torch import Tensor

from polyopt.batch import Batch
from polyopt.objectives.protocol import Evaluation, Tokens


@dataclass(frozen=True)
class Point:
    """What an objective sees of the model at the moment its loss is differentiated.

    Attributes:
        values: Log-probabilities, and what else the objective asks for.
        graph: The forward that gave them, if its graph waits for the gradient; None if the
            gradient takes forwards of its own.
        sampled: They are the sampler's, which on-policy are the policy's own up to rounding.
    """

    values: Evaluation
    graph: Evaluation | None = None
    sampled: bool = False

    @classmethod
    def waiting(cls, forward: Evaluation) -> Point:
        """The outputs of a forward whose graph waits."""
        return cls(forward, graph=forward)

    @classmethod
    def of_sampler(cls, batch: Batch) -> Point:
        """The sampler's log-probabilities of a batch that is on-policy."""
        logp = batch["logp_sampler"].masked_fill(~batch.mask, 0.0).float()
        return cls(Evaluation(logp), sampled=True)

    def leaves(self) -> Evaluation:
        """The same numbers as the start of a graph."""
        return Evaluation(
            **{n: v.detach().clone().requires_grad_() for n, v in _tensors(self.values)}
        )


def boundary_gradients(leaves: Evaluation) -> dict[str, Tokens]:
    """Gradients that a backward left at the leaves, by name."""
    return {n: v.grad for n, v in _tensors(leaves) if v.grad is not None}


def live_rows(leaves: Evaluation) -> Bool[Tensor, " N"]:
    """Rows at which a backward left a gradient that isn't 0."""
    live = torch.zeros(len(leaves.logp), dtype=torch.bool, device=leaves.logp.device)
    for grad in boundary_gradients(leaves).values():
        live |= (grad != 0).any(1)
    return live


def push(forward: Evaluation, grads: Mapping[str, Tokens]) -> None:
    """Backward of sum(output * gradient at the boundary)."""
    pairs = [(v, grads[n]) for n, v in _tensors(forward) if n in grads and v.requires_grad]
    torch.autograd.backward([value for value, _ in pairs], [grad for _, grad in pairs])


def with_old(batch: Batch, logp: Tokens) -> Batch:
    """The batch with `logp_old`: its own column, or the current values if it is on-policy."""
    return batch if "logp_old" in batch else batch.replace(logp_old=logp.detach())


def _tensors(evaluation: Evaluation) -> list[tuple[str, Tensor]]:
    named = [(f.name, getattr(evaluation, f.name)) for f in fields(evaluation)]
    return [(name, value) for name, value in named if value is not None]
