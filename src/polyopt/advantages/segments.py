"""Credit for segments of a completion, from values that are known at its cutpoints or steps."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from polyopt.advantages.statistics import spread
from polyopt.advantages.trajectories import success
from polyopt.batch import Batch
from polyopt.groups import group_mean
from polyopt.parts import part
from polyopt.rollout_table import RolloutTable

Advantages = Float[Tensor, "N T"]


@part("advantages.estimator", needs={"cut", "prefix_values"})
def segment_gain(advantages: Advantages, batch: Batch) -> Advantages:
    """A = V(end of the segment) - V(its start), on each of its tokens.

    A segment runs from one cut to the next, the last one to the end of the completion, whose value
    is its reward. Tokens before the first cut have no known start and get 0.

    Columns [N, T]: `cut`, 1 on the first token of each segment whose start has a value;
    `prefix_values`, there, the mean score of fresh continuations of what stands before the token.
    SPO-chain, arXiv 2505.23564.
    """
    cut = (batch["cut"] > 0.5) & batch.mask
    start, end = _cut_at_or_before(cut), _cut_after(cut)
    values = batch["prefix_values"].to(batch.rewards.dtype).masked_fill(~cut, 0.0)
    begun = values.gather(1, start.clamp(min=0))
    ended = values.gather(1, end.clamp(max=batch.width - 1))
    ended = torch.where(end < batch.width, ended, batch.rewards[:, None])
    return torch.where((start >= 0) & batch.mask, ended - begun, 0.0)


@part("advantages.shaping", needs={"logp_sampler"})
@dataclass(frozen=True)
class ChoicesOnly:
    """A_t = 0 where the sampler gave the token a probability above rho: it followed, unchosen.

    The token stays in the loss's denominators; `ProbabilityMask` takes it out of them. SPO, arXiv
    2505.23564.

    Attributes:
        rho: Largest probability of a choice.
    """

    rho: float = 0.9

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        return torch.where(batch["logp_sampler"] <= math.log(self.rho), advantages, 0.0)


def _cut_at_or_before(cut: Bool[Tensor, "N T"]) -> Int[Tensor, "N T"]:
    """Place of the last cut up to each token; -1 before the first."""
    place = torch.arange(cut.shape[1], device=cut.device).expand(cut.shape)
    return torch.where(cut, place, -1).cummax(1).values


def _cut_after(cut: Bool[Tensor, "N T"]) -> Int[Tensor, "N T"]:
    """Place of the next cut after each token; T after the last."""
    width = cut.shape[1]
    place = torch.arange(width, device=cut.device).expand(cut.shape)
    following = torch.where(cut, place, width).flip(1).cummin(1).values.flip(1)
    return torch.nn.functional.pad(following[:, 1:], (0, 1), value=width)


@part("advantages.shaping", needs={"step_label"})
@dataclass(frozen=True)
class ThoughtCredit:
    """What a judge said about each step, on top of the outcome's advantage A_i.

    right solution: A_i on right steps, A_i - alpha acc on steps that it takes back later;
    wrong solution: A_i on steps that the wrong answer follows from, 0 on the others.
    acc is the share of right solutions in the group: while they are rare, only the outcome counts.

    Column `step_label` [N, T]: 1 on tokens of steps judged right (in a wrong solution: steps that
    its answer doesn't follow from), else 0. Consecutive steps of one label are one thought.
    TP-GRPO, arXiv 2507.23317; alpha isn't stated in the sources at hand.

    Attributes:
        alpha: Weight of the process reward.
    """

    alpha: float = 0.5

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        right, label = success(batch)[:, None], batch["step_label"] > 0.5
        taken_back = spread(self.process_reward(batch), batch.mask)
        solved = torch.where(label, advantages, advantages - taken_back)
        failed = torch.where(label, 0.0, advantages)
        return torch.where(right, solved, failed)

    def process_reward(self, batch: Batch) -> Float[Tensor, " N"]:
        """r_c = alpha * share of right solutions in the row's group."""
        table = RolloutTable.of(batch)
        won = table.column(success(batch)).to(batch.rewards.dtype)
        return table.rows(self.alpha * group_mean(won, table.group))
