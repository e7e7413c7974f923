"""The LM head fused with the log-softmax by C kernels, block by block of the vocabulary.

All tokens meet a block of the vocabulary at a time, so the head's gradient is made once for each of
its rows, and each block of logits is read while it is in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from polyopt.models.matrix_products import product
from polyopt.native.library import Library

BLOCK = 1 << 23
"""Logits that exist at one time."""


@dataclass(frozen=True)
class Head:
    """What log-probabilities are computed from, on the CPU in float32.

    Attributes:
        kernels: The C kernels.
        hidden: Last hidden states.
        weight: Weight of the LM head.
        bias: Its bias, or None.
        targets: Token ids.
        temperature: Divides the logits.
    """

    kernels: Library
    hidden: Float[Tensor, "M H"]
    weight: Float[Tensor, "V H"]
    bias: Float[Tensor, " V"] | None
    targets: Int[Tensor, " M"]
    temperature: float

    def blocks(self) -> Iterator[tuple[slice, Float[Tensor, "M B"]]]:
        """Logits of all tokens for one block of the vocabulary after another."""
        width = max(256, BLOCK // max(len(self.hidden), 1))
        for start in range(0, len(self.weight), width):
            part = slice(start, min(start + width, len(self.weight)))
            logits = product(self.hidden, self.weight[part].t())
            yield part, logits if self.bias is None else logits.add_(self.bias[part])

    def log_probs(self, entropy: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities of the targets, logsumexps, and entropies (empty if unwanted)."""
        sums = torch.zeros(len(self.hidden), 4, dtype=torch.float64)
        sums[:, 0] = float("-inf")
        for part, logits in self.blocks():
            self.kernels.softmax_sums_(
                sums, logits, part.start, self.targets, self.temperature, weighted=entropy
            )
        most, weight, weighted, target = sums.unbind(1)
        log_weight = weight.log()
        entropies = (log_weight - weighted / weight).float() if entropy else torch.empty(0)
        return (target - most - log_weight).float(), (most + log_weight).float(), entropies

    def gradients(
        self,
        norm: Float[Tensor, " M"],
        entropies: Float[Tensor, " M"] | None,
        grad_logp: Float[Tensor, " M"] | None,
        grad_entropy: Float[Tensor, " M"] | None,
        needs: tuple[bool, bool, bool],
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Gradients of hidden states, weight and bias, where needed."""
        grad_hidden = torch.zeros_like(self.hidden) if needs[0] else None
        grad_weight = torch.empty_like(self.weight) if needs[1] else None
        grad_bias = torch.empty_like(self.bias) if self.bias is not None and needs[2] else None
        for part, logits in self.blocks():
            self.kernels.softmax_gradient_(
                *(logits, part.start, self.targets, self.temperature),
                *(norm, entropies, grad_logp, grad_entropy),
            )
            if grad_hidden is not None:
                product(logits, self.weight[part], add=grad_hidden, out=grad_hidden)
            if grad_weight is not None:
                product(logits.t(), self.hidden, out=grad_weight[part])
            if grad_bias is not None:
                grad_bias[part] = logits.sum(0)
        return grad_hidden, grad_weight, grad_bias
