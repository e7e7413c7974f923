"""Weights from credit and entropy together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from polyopt.batch import Batch
from polyopt.levels import rollout_mean, rollout_rows, rollout_sum
from polyopt.parts import part
from polyopt.selection.corrections import weighted

Tokens = Float[Tensor, "N T"]


def group_softmax(scores: Tokens, batch: Batch, there: Bool[Tensor, "N T"]) -> Tokens:
    """At each position the softmax over a prompt's rollouts that are still there; 0 elsewhere."""
    index = batch.group_index[:, None].expand_as(scores)
    groups = int(index.max()) + 1 if index.numel() else 0
    low = scores.new_full((groups, scores.shape[1]), -torch.inf)
    held = scores.masked_fill(~there, -torch.inf)
    top = low.scatter_reduce(0, index, held, "amax").gather(0, index)
    powers = (held - top.masked_fill(top.isinf(), 0.0)).exp().masked_fill(~there, 0.0)
    total = torch.zeros_like(low).scatter_add(0, index, powers).gather(0, index)
    return powers / total.clamp(min=torch.finfo(scores.dtype).tiny)


def _per_prompt(batch: Batch) -> float:
    """Trained rollouts per prompt with any."""
    live = batch.loss_mask.any(1)
    return len(torch.unique(batch.rollout[live])) / max(len(torch.unique(batch.group[live])), 1)


@part("selection.parts", needs={"advantages", "entropy"}, min_rollouts=2)
@dataclass(frozen=True)
class EntropyGuidedTokens:
    """weight_it = G exp(u_it) / sum_j exp(u_jt), u = (A + alpha H) / temperature, step by step.

    The sum goes over the prompt's rollouts that have a token at position t; H is the token's
    entropy in nats; G, the mean number of rollouts per prompt, makes equal weights 1, so that with
    the sequence-mean aggregation the prompts of a batch count alike and the weights stand in for
    GRPO's 1/G.

    EGSW, arXiv 2503.22456, step-wise form (alpha and temperature of the paper not seen).

    Attributes:
        alpha: Weight of the entropy.
        temperature: P of the paper.
    """

    alpha: float = 0.3
    temperature: float = 1.0

    def scores(self, batch: Batch) -> Tokens:
        """u [N, T]."""
        return (batch["advantages"] + self.alpha * batch["entropy"]) / self.temperature

    def __call__(self, batch: Batch) -> Batch:
        """The batch with weighted tokens."""
        shares = group_softmax(self.scores(batch), batch, batch.loss_mask)
        return weighted(batch, shares * _per_prompt(batch))


@part("selection.parts", needs={"advantages", "entropy"}, min_rollouts=2)
@dataclass(frozen=True)
class EntropyGuidedRollouts:
    """weight_i = G softmax over the prompt's rollouts of (A_i + alpha H_i) / temperature.

    A_i and H_i are means over the rollout's trained tokens.

    EGSW, arXiv 2503.22456, trajectory-wise form.

    Attributes:
        alpha: Weight of the entropy.
        temperature: P of the paper.
    """

    alpha: float = 0.5
    temperature: float = 2.0

    def __call__(self, batch: Batch) -> Batch:
        """The batch with weighted tokens."""
        credit = rollout_mean(batch["advantages"], batch)
        scores = (credit + self.alpha * rollout_mean(batch["entropy"], batch)) / self.temperature
        live = rollout_sum(torch.ones_like(batch["entropy"]), batch) > 0
        rows = rollout_rows(batch, scores)  # a rollout of several rows counts once
        shares = rows[:, None] * group_softmax((scores - rows.log())[:, None], batch, live[:, None])
        return weighted(batch, shares.expand(batch.mask.shape) * _per_prompt(batch))
