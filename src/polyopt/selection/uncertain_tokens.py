"""Training on part of the tokens: those the policy was unsure of, or a random share."""

from __future__ import annotations

import math
from dataclasses import dataclass

from polyopt.batch import Batch
from polyopt.draws import uniforms
from polyopt.parts import part


@part("selection.parts", needs={"logp_old"})
@dataclass(frozen=True)
class ProbabilityMask:
    """Only tokens with pi_old(o_t) < rho train: choices, not what follows from them.

    The others leave the denominator. SPO, arXiv 2505.23564 (probability-mask strategy).

    Attributes:
        rho: Probability from which on a token doesn't train.
    """

    rho: float = 0.9

    def __call__(self, batch: Batch) -> Batch:
        """The batch with a smaller `loss_mask`."""
        unsure = batch["logp_old"] < math.log(self.rho)
        return batch.replace(loss_mask=batch.loss_mask & unsure)


@part("selection.parts")
@dataclass(frozen=True)
class RandomTokens:
    """The first `cutoff` sampled tokens of a rollout train, and of the later ones a random share.

    A token is kept if its draw (`polyopt.draws.uniforms`) is below `share`. S-GRPO, arXiv
    2504.20834; its cutoff and share aren't stated in the sources at hand.

    Attributes:
        cutoff: Tokens at the start that always train.
        share: Probability with which a later token trains.
    """

    cutoff: int = 2
    share: float = 0.4

    def __call__(self, batch: Batch) -> Batch:
        """The batch with a smaller `loss_mask`."""
        early = batch.mask.long().cumsum(1) <= self.cutoff
        return batch.replace(loss_mask=batch.loss_mask & (early | (uniforms(batch) < self.share)))
