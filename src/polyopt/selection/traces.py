"""Weights of thinking traces: how much each trace of a question tells about the reasoner itself.

The traces of a question were sampled by a posterior, a policy that may have seen the answer: the
column `logp_sampler` is theirs, `logp_ref` that of the initial reasoner without it. An importance
weight of whole traces would be one trace's alone, so its logarithm is a mean over tokens.

"Variational Reasoning for Language Models", arXiv 2509.22637.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from polyopt.advantages.soft_means import group_log_softmax
from polyopt.advantages.trajectories import PerRollout, Trajectories
from polyopt.batch import Batch
from polyopt.groups import group_max, group_min, group_sum
from polyopt.parts import part


def mean_over(values: Float[Tensor, "N T"], tokens: Tensor, rollouts: Trajectories) -> PerRollout:
    """Mean over some of each rollout's trained tokens; 0 where there are none."""
    counted = tokens.to(values.dtype)
    return rollouts.sum(values * counted) / rollouts.sum(counted).clamp(min=1)


def thinking(batch: Batch) -> Bool[Tensor, "N T"]:
    """Tokens of the trace: all but `answer_tokens` [N, T], where the batch has that column."""
    if "answer_tokens" in batch:
        return ~batch["answer_tokens"].bool()
    return torch.ones_like(batch.mask)


def plausibility(rollouts: Trajectories) -> PerRollout:
    """Mean log-ratio of prior to posterior over the tokens of each trace, in nats."""
    batch = rollouts.batch
    return mean_over(batch["logp_ref"] - batch["logp_sampler"], thinking(batch), rollouts)


def likelihood_scores(rollouts: Trajectories) -> PerRollout:
    """log rho: the answer's mean log-probability given the trace, plus the trace's plausibility."""
    batch = rollouts.batch
    answer = mean_over(batch["logp_ref"], batch["answer_tokens"], rollouts)
    return answer + plausibility(rollouts)


def accuracy_scores(rollouts: Trajectories) -> PerRollout:
    """rho: right answers after the trace (`accuracy`, or the reward) times exp(plausibility)."""
    batch = rollouts.batch
    accuracy = rollouts.pick(batch.columns.get("accuracy", batch.rewards))
    return accuracy.clamp(min=0) * plausibility(rollouts).exp()


def shares(scores: PerRollout, rollouts: Trajectories) -> PerRollout:
    """Scores that add up to 1 over a question; all 0 where they all are."""
    total = group_sum(scores, rollouts.index)
    return torch.where(total > 0, scores / torch.where(total > 0, total, 1.0), 0.0)


def weighted(share: PerRollout, rollouts: Trajectories) -> Batch:
    """The batch with `weights` times k * share: 1 on average over the k of a question."""
    whole = rollouts.spread(rollouts.size(share) * share)
    batch = rollouts.batch
    return batch.replace(weights=batch["weights"] * whole if "weights" in batch else whole)


@part("selection.parts", needs={"logp_ref", "logp_sampler"})
def accuracy_trace_weights(batch: Batch) -> Batch:
    """weights *= k rho_i / sum_j rho_j, rho = accuracy * exp(mean_t log(prior / posterior)).

    A question without any right answer trains nothing. The estimator by accuracy; with binary
    rewards and one policy for all, it is rejection sampling.
    """
    rollouts = Trajectories.of(batch)
    return weighted(shares(accuracy_scores(rollouts), rollouts), rollouts)


@part("selection.parts", needs={"logp_ref", "logp_sampler", "answer_tokens"})
def likelihood_trace_weights(batch: Batch) -> Batch:
    """weights *= k softmax_i(log rho), log rho = mean_t log prior(answer) + plausibility.

    Column `answer_tokens` [N, T]: 1 on the tokens of the answer, after the trace. The estimator by
    the geometric mean of the answer's likelihood; needs no verifier.
    """
    rollouts = Trajectories.of(batch)
    share = group_log_softmax(likelihood_scores(rollouts), rollouts.index).exp()
    return weighted(share, rollouts)


@part("selection.parts")
def heaviest_only(batch: Batch) -> Batch:
    """Only the rollout with the largest of the `weights` of its prompt trains, with weight 1.

    Of equal ones the first; where all weights are 0, none. The released pipeline of Variational
    Reasoning keeps one trace a question, where the paper weighs all.
    """
    rollouts = Trajectories.of(batch)
    weight = rollouts.weight(batch.rewards)
    heaviest = (weight == group_max(weight, rollouts.index)) & (weight > 0)
    place = torch.arange(len(weight), device=weight.device).to(weight.dtype)
    first = group_min(torch.where(heaviest, place, torch.inf), rollouts.index) == place
    chosen = rollouts.spread(first.to(weight.dtype)) > 0
    return batch.replace(loss_mask=batch.loss_mask & chosen, weights=chosen.to(weight.dtype))
