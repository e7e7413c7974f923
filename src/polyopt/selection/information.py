"""Token weights from how much the completions of a prompt differ in what they would say next."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from polyopt.batch import Batch
from polyopt.groups import group_size
from polyopt.parts import part


def divergence_from_group(
    logp_vocab: Float[Tensor, "N T V"],
    mask: Bool[Tensor, "N T"],
    index: Int[Tensor, " N"],
    bound: float = 11.0,
) -> Float[Tensor, "N T"]:
    """k_{i,t} = sum_v (e^d - d - 1), d the group's mean log-probability of token v less row i's.

    Past its end a row counts as uniform. Differences are held to +-bound. Called a KL divergence to
    the group's mean by TW-GRPO, arXiv 2505.24718: a sum over the vocabulary without weights, the
    mean taken of logarithms.
    """
    uniform = -torch.log(torch.tensor(float(logp_vocab.shape[2]), dtype=logp_vocab.dtype))
    filled = torch.where(mask[:, :, None], logp_vocab, uniform.to(logp_vocab.device))
    total = filled.new_zeros(group_size(index), *filled.shape[1:]).index_add(0, index, filled)
    size = torch.bincount(index, minlength=len(total))
    difference = ((total / size[:, None, None])[index] - filled).clamp(-bound, bound)
    return (difference.exp() - difference - 1).sum(2)


@part("selection.parts", needs={"vocabulary_divergence"})
@dataclass(frozen=True)
class InformationWeights:
    """w_t = 1 + (alpha - 1) (K_t - min K) / (max K - min K), the same for all rows of a group.

    K_t is the mean over the group of k_{i,t} (`divergence_from_group`), min and max are over the
    places that some row of the group reaches. Places where completions disagree weigh up to alpha,
    boilerplate weighs 1.

    Column `vocabulary_divergence` [N, T]: k_{i,t}, also at places past the end of the row. TW-GRPO,
    arXiv 2505.24718; the authors' code lets the gradient through the weights, here they are
    constants unless the column carries a gradient.

    Attributes:
        alpha: Largest weight (1.7 in the authors' script).
        eps: Added to max K - min K.
    """

    alpha: float = 1.7
    eps: float = 1e-8

    def __call__(self, batch: Batch) -> Batch:
        """The batch with other `weights`."""
        weights, before = self.token_weights(batch), batch.columns.get("weights")
        return batch.replace(weights=weights if before is None else before * weights)

    def token_weights(self, batch: Batch) -> Float[Tensor, "N T"]:
        """w_t on sampled tokens, 0 elsewhere."""
        k, index = batch["vocabulary_divergence"], batch.group_index
        shape = (group_size(index), batch.width)
        size = torch.bincount(index, minlength=shape[0])[:, None]
        reached = k.new_zeros(shape).index_add(0, index, batch.mask.to(k.dtype)) > 0
        mean = k.new_zeros(shape).index_add(0, index, k) / size
        low = torch.where(reached, mean, torch.inf).amin(1, keepdim=True)
        high = torch.where(reached, mean, -torch.inf).amax(1, keepdim=True)
        scaled = torch.where(reached, (mean - low) / (high - low + self.eps), 0.0)
        return (1 + (self.alpha - 1) * scaled)[index] * batch.mask
