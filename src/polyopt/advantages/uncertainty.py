"""Credit scaled by uncertainty: the policy's entropy over a rollout, or over a prompt's answers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from polyopt.batch import Batch
from polyopt.groups import group_count, group_max, group_mean, group_sum, one_group, subgroups
from polyopt.parts import part
from polyopt.rollout_table import RolloutTable

Advantages = Float[Tensor, "N T"]
PerRollout = Float[Tensor, " R"]


def entropy_ratio(entropy: PerRollout, index: Int[Tensor, " R"]) -> PerRollout:
    """E_i / mean of E over each scope; 1 where the entropy is 0, so that it can be divided by."""
    ratio = entropy / group_mean(entropy, index)
    return torch.where(entropy > 0, ratio, torch.ones_like(ratio))


@part("advantages.shaping", needs={"entropy"})
@dataclass(frozen=True)
class EntropyScale:
    """A /= E_i / mean_g(E), E_i the mean token entropy of rollout i in nats: confident rollouts
    count more, right or wrong.

    EDGE-GRPO, "Entropy-Driven GRPO with Guided Error Correction for Advantage Diversity",
    arXiv 2507.21848. The authors' code averages E over the batch (`BatchEntropyScale`) and lets
    gradients through E_i; here it is a constant.

    Attributes:
        least: Lower bound of the ratio, which the paper doesn't have.
        most: Upper bound of the ratio.
    """

    least: float = 0.01
    most: float = math.inf

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        table = RolloutTable.of(batch)
        entropy = table.token_mean(batch["entropy"].to(advantages.dtype))
        ratio = entropy_ratio(entropy, self.scope(table)).clamp(self.least, self.most)
        return advantages / table.rows(ratio)[:, None]

    def scope(self, table: RolloutTable) -> Int[Tensor, " R"]:
        """Over which rollouts E is averaged: the group."""
        return table.group


@part("advantages.shaping", needs={"entropy"})
@dataclass(frozen=True)
class BatchEntropyScale(EntropyScale):
    """A /= E_i / mean_batch(E): EDGE-GRPO's scale as its code has it, arXiv 2507.21848."""

    def scope(self, table: RolloutTable) -> Int[Tensor, " R"]:
        """Over which rollouts E is averaged: all of the batch."""
        return one_group(table.rewards)


def linear_discount(x: Tensor) -> Tensor:
    """max(1 - x, 0)."""
    return (1 - x).clamp(min=0)


def exponential_discount(x: Tensor) -> Tensor:
    """exp(-x)."""
    return (-x).exp()


@part("advantages.shaping", needs={"answer_class"})
@dataclass(frozen=True)
class SemanticEntropyDiscount:
    """A *= f(alpha SE_g / log G), SE = -(1/K) sum_k log p(C_k) over the K answers of the prompt.

    p(C_k) is the share of the G rollouts whose `answer_class` [N] (an id per answer, equal for
    equivalent answers of a prompt) is k. Uncertain prompts get smaller steps; with one answer, or
    one rollout, f is 1. SEED-GRPO, "Semantic Entropy Enhanced GRPO for Uncertainty-Aware Policy
    Optimization", arXiv 2505.12346 (estimator, f and alpha partly reconstructed).

    Attributes:
        alpha: Strength.
        discount: f, from [0, inf) down from 1.
    """

    alpha: float = 0.02
    discount: Callable[[Tensor], Tensor] = linear_discount

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        table = RolloutTable.of(batch)
        size = group_count(table.group, table.rewards)
        most = torch.where(size > 1, size.log(), 1.0)
        factor = self.discount(self.alpha * self.entropy(batch) / most)
        return advantages * table.rows(factor)[:, None]

    def entropy(self, batch: Batch) -> PerRollout:
        """SE of each rollout's group in nats."""
        table = RolloutTable.of(batch)
        answer = subgroups(table.column(batch["answer_class"]), table.group)
        once = 1 / group_count(answer, table.rewards)
        log_share = self.log_share(batch, table, answer)
        classes = group_sum(once, table.group)
        return -group_sum(once * log_share, table.group) / classes

    def log_share(self, batch: Batch, table: RolloutTable, answer: Int[Tensor, " R"]) -> PerRollout:
        """log p of each rollout's answer: its share of the group's rollouts."""
        size = group_count(table.group, table.rewards)
        return (group_count(answer, table.rewards) / size).log()


@part("advantages.shaping", needs={"answer_class", "logp_old"})
@dataclass(frozen=True)
class LikelihoodSemanticEntropyDiscount(SemanticEntropyDiscount):
    """The same with p(C_k) the total probability of its rollouts, normalised over the G rollouts.

    A rollout's probability is exp of the sum of its `logp_old`. SEED-GRPO, arXiv 2505.12346.
    """

    def log_share(self, batch: Batch, table: RolloutTable, answer: Int[Tensor, " R"]) -> PerRollout:
        """log p of each rollout's answer."""
        logp = table.token_sum(batch["logp_old"]).to(table.rewards.dtype)
        return _log_sum(logp, answer) - _log_sum(logp, table.group)


def _log_sum(logp: PerRollout, index: Int[Tensor, " R"]) -> PerRollout:
    """log of the sum of exp over each group."""
    top = group_max(logp, index)
    return group_sum((logp - top).exp(), index).log() + top
