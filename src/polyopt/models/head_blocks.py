"""The LM head fused with the log-softmax by C kernels, block by block of the vocabulary.

All tokens meet a block of the vocabulary at a time, so the head's gradient is made once for each of
its rows, and each block of logits is read while it is in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from polyopt.models.matrix_products import product
from polyopt.native.library import Library

BLOCK = 1 << 23
"""Logits that exist at one time."""


Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]
"""Of hidden states [M, H], weight [V, H] and bias [V], where wanted."""


class Foreseen(NamedTuple):
    """Log-probabilities that are known already, and the gradient that they are going to get."""

    logp: Float[Tensor, " M"]
    gradient: Float[Tensor, " M"]


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
        sums = self._no_sums()
        for part, logits in self.blocks():
            self._sum(sums, part, logits, entropy)
        most, weight, weighted, target = sums.unbind(1)
        log_weight = weight.log()
        entropies = (log_weight - weighted / weight).float() if entropy else torch.empty(0)
        return (target - most - log_weight).float(), (most + log_weight).float(), entropies

    def gradients_and_log_probs(
        self, foreseen: Foreseen, needs: tuple[bool, bool, bool]
    ) -> tuple[Gradients, Float[Tensor, " M"]]:
        """Gradients at a point that is foreseen, and the log-probabilities as they really are.

        Each block of logits is computed once: at foreseen log-probabilities, the logsumexps are
        those of the targets' logits less them.
        """
        sums = self._no_sums()
        into = self._no_gradients(needs)
        norm = self.target_logits() - foreseen.logp
        for part, logits in self.blocks():
            self._sum(sums, part, logits, entropy=False)
            self.kernels.softmax_gradient_(
                *(logits, part.start, self.targets, self.temperature),
                *(norm, None, foreseen.gradient, None),
            )
            self._carry(part, logits, into)
        most, weight, _, target = sums.unbind(1)
        return into, (target - most - weight.log()).float()

    def target_logits(self) -> Float[Tensor, " M"]:
        """Logits of the targets over the temperature."""
        logits = (self.hidden * self.weight[self.targets]).sum(-1)
        if self.bias is not None:
            logits += self.bias[self.targets]
        return logits / self.temperature

    def gradients(
        self,
        norm: Float[Tensor, " M"],
        entropies: Float[Tensor, " M"] | None,
        grad_logp: Float[Tensor, " M"] | None,
        grad_entropy: Float[Tensor, " M"] | None,
        needs: tuple[bool, bool, bool],
    ) -> Gradients:
        """Gradients of hidden states, weight and bias, where needed."""
        into = self._no_gradients(needs)
        for part, logits in self.blocks():
            self.kernels.softmax_gradient_(
                *(logits, part.start, self.targets, self.temperature),
                *(norm, entropies, grad_logp, grad_entropy),
            )
            self._carry(part, logits, into)
        return into

    def _no_sums(self) -> Float[Tensor, "M 4"]:
        sums = torch.zeros(len(self.hidden), 4, dtype=torch.float64)
        sums[:, 0] = float("-inf")
        return sums

    def _sum(self, sums: Tensor, part: slice, logits: Tensor, entropy: bool) -> None:
        """Take a block into the softmax sums."""
        where = part.start, self.targets, self.temperature
        self.kernels.softmax_sums_(sums, logits, *where, weighted=entropy)

    def _no_gradients(self, needs: tuple[bool, bool, bool]) -> Gradients:
        return (
            torch.zeros_like(self.hidden) if needs[0] else None,
            torch.empty_like(self.weight) if needs[1] else None,
            torch.empty_like(self.bias) if self.bias is not None and needs[2] else None,
        )

    def _carry(self, part: slice, slopes: Tensor, into: Gradients) -> None:
        """Carry the gradient of a block of logits on."""
        hidden, weight, bias = into
        if hidden is not None:
            product(slopes, self.weight[part], add=hidden, out=hidden)
        if weight is not None:
            product(slopes.t(), self.hidden, out=weight[part])
        if bias is not None:
            bias[part] = slopes.sum(0)
