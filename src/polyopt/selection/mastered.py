"""Tokens that need no more training."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Bool
from torch import Tensor

from polyopt.batch import Batch
from polyopt.levels import rollout_mean
from polyopt.parts import part


@part("selection.parts", needs={"advantages", "entropy", "logp_old"})
@dataclass(frozen=True)
class MaskMasteredTokens:
    """Positive tokens that the policy all but surely says don't train, where entropy is low.

    Mastered: A > 0 and exp(logp_old) >= probability. They leave the loss and its denominator in
    rollouts whose mean entropy is below `target_entropy`; above it nothing is masked, so entropy
    settles at the target without a loss term.

    UloRL, arXiv 2507.19766 (target entropy from memory, denominator ours).

    Attributes:
        probability: From which on a token counts as mastered.
        target_entropy: Mean entropy of a rollout's tokens, in nats.
    """

    probability: float = 0.99
    target_entropy: float = 0.2

    def mastered(self, batch: Batch) -> Bool[Tensor, "N T"]:
        """Positive tokens above the probability, [N, T]."""
        sure = batch["logp_old"].exp() >= self.probability
        return batch.loss_mask & (batch["advantages"] > 0) & sure

    def __call__(self, batch: Batch) -> Batch:
        """The batch with a smaller loss mask."""
        low = rollout_mean(batch["entropy"], batch) < self.target_entropy
        return batch.replace(loss_mask=batch.loss_mask & ~(self.mastered(batch) & low[:, None]))
