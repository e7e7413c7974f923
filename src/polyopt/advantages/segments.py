"""Credit for segments of a completion, from values that are known at its cutpoints or steps."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from polyopt.advantages.trajectories import success
from polyopt.advantages.statistics import spread
from polyopt.batch import Batch
from polyopt.groups import group_mean
from polyopt.parts import part
from polyopt.rollout_table import RolloutTable

Advantages = Float[Tensor, "N T"]


@part("advantages.estimator", needs={"logp_sampler", "prefix_values"})
@dataclass(frozen=True)
class CutpointSegments:
    """A = V(end of the segment) - V(its start), on the tokens that were choices.

    A segment begins at every `interval`-th token of probability below rho and runs up to the next;
    the last ends with the completion, whose value is its reward. Tokens before the first cutpoint
    have no known start and get 0, as do tokens of probability above rho.

    Column `prefix_values` [N, T]: at token t, the mean score of fresh continuations of what stands
    before t; read at cutpoints only (`cutpoints` says where to sample). SPO-chain, arXiv
    2505.23564; rho and interval are those of the authors' code.

    Attributes:
        interval: Uncertain tokens from one cutpoint to the next.
        rho: Probability from which on a token counts as certain.
    """

    interval: int = 5
    rho: float = 0.9

    def __call__(self, advantages: Advantages, batch: Batch) -> Advantages:
        """Advantages [N, T]."""
        cut = self.cutpoints(batch)
        start, end = _cut_at_or_before(cut), _cut_after(cut)
        width = batch.width
        values = batch["prefix_values"].masked_fill(~cut, 0.0)
        begun = values.gather(1, start.clamp(min=0))
        ended = values.gather(1, end.clamp(max=width - 1))
        ended = torch.where(end < width, ended, batch.rewards[:, None])
        choice = (batch["logp_sampler"] <= math.log(self.rho)) & batch.mask
        return torch.where((start >= 0) & choice, ended - begun, 0.0)

    def cutpoints(self, batch: Batch) -> Bool[Tensor, "N T"]:
        """Tokens before which the completion is cut, and a value is wanted."""
        uncertain = (batch["logp_sampler"] < math.log(self.rho)) & batch.mask
        nth = uncertain.long().cumsum(1) - 1
        return uncertain & (nth % self.interval == 0)


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
