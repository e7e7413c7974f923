"""Vectors of the whole algorithms and of the building blocks of the loss."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from polyopt.advantages.baselines import (
    GroupZScore,
    LeaveOneOut,
    WhitenedReturn,
    greedy_baseline,
    group_mean_baseline,
    whitened_group_mean,
)
from polyopt.advantages.statistics import suffix_sum, whiten
from polyopt.advantages.values import GeneralizedAdvantage
from polyopt.batch import Batch
from polyopt.objectives.aggregation import (
    ConstantLength,
    sequence_mean_token_mean,
    sequence_mean_token_sum,
    token_mean,
)
from polyopt.objectives.objective import Objective
from polyopt.objectives.penalties import KLPenaltyK3
from polyopt.objectives.protocol import Aggregation, Evaluation, TokenLoss
from polyopt.objectives.ratios import sequence_ratio, sequence_token_ratio
from polyopt.objectives.surrogates import ClippedSurrogate
from polyopt.rewards.shaping import SoftOverlong
from polyopt.selection.screens import DynamicSampling
from tests.verify.harness import Case, Outputs, loss_and_grad, maps

AGGREGATIONS: dict[str, Aggregation] = {
    "token-mean": token_mean,
    "seq-mean-token-mean": sequence_mean_token_mean,
    "seq-mean-token-sum": sequence_mean_token_sum,
}


def credit(part: Any, batch: Batch) -> Tensor:
    """Advantages of an estimator, [N, T]."""
    return part(torch.zeros(batch.mask.shape, dtype=batch.rewards.dtype), batch)  # type: ignore[no-any-return]


def per_rollout(advantages: Tensor, batch: Batch) -> Tensor:
    """The advantage of each rollout, where all its tokens have the same."""
    return (advantages * batch.mask).sum(1) / batch.mask.sum(1).clamp(min=1)


def rollout_batch(case: Case, *columns: str) -> Batch:
    """The case's batch, with one token per rollout where it has no mask."""
    if case.has("mask"):
        return case.batch(*columns)
    return case.batch(*columns, mask=torch.ones(len(case.raw("rewards")), 1))


@maps("grpo")
def grpo(case: Case) -> Outputs:
    if case.param("kind") == "loss":
        clip = ClippedSurrogate(case.param("clip_low"), case.param("clip_high"))
        objective = Objective(
            surrogate=clip,
            kl=KLPenaltyK3(case.param("kl_beta")),
            aggregation=sequence_mean_token_mean,
        )
        batch = case.batch("advantages", "logp_old", "logp_ref")
        return loss_and_grad(objective, batch, case.tensor("logp"))
    batch = rollout_batch(case)
    part: Any = GroupZScore(case.param("epsilon"), lone=1.0)
    if not case.param("norm_by_std", True):
        part = group_mean_baseline
    advantages = credit(part, batch)
    return {"advantages": per_rollout(advantages, batch), "token_advantages": advantages}


@maps("dr-grpo")
def dr_grpo(case: Case) -> Outputs:
    if case.param("kind") == "loss":
        objective = Objective(
            surrogate=ClippedSurrogate(case.param("clip_low"), case.param("clip_high")),
            aggregation=ConstantLength(case.param("max_length")),
        )
        return loss_and_grad(objective, case.batch("advantages", "logp_old"), case.tensor("logp"))
    batch = rollout_batch(case)
    return {"advantages": per_rollout(credit(group_mean_baseline, batch), batch)}


@maps("rloo")
def rloo(case: Case) -> Outputs:
    batch = rollout_batch(case)
    advantages = credit(LeaveOneOut(lone=1.0), batch)
    return {"advantages": per_rollout(advantages, batch), "token_advantages": advantages}


@maps("remax")
def remax(case: Case) -> Outputs:
    batch = case.batch("token_rewards", greedy_reward=case.tensor("baseline_rewards"))
    everywhere = torch.ones_like(batch.mask)  # the port's returns go on at tokens outside the mask
    returns = suffix_sum(batch["token_rewards"] * batch.mask, everywhere)
    advantages = credit(greedy_baseline, batch)
    return {"returns": returns, "advantages": torch.where(batch.mask, advantages, returns)}


@maps("reinforce-plus-plus")
def reinforce_plus_plus(case: Case) -> Outputs:
    if case.param("variant") == "plain":
        gamma = case.param("gamma")
        batch = case.batch("token_rewards")
        returns = suffix_sum(batch["token_rewards"], batch.mask, gamma)
        return {"returns": returns, "advantages": credit(WhitenedReturn(gamma), batch)}
    return {"advantages": credit(whitened_group_mean, case.batch())}


@maps("gae")
def gae(case: Case) -> Outputs:
    part = GeneralizedAdvantage(case.param("gamma"), case.param("lam"))
    batch = case.batch("token_rewards", "values")
    raw = credit(part, batch)
    return {
        "advantages_raw": raw,
        "returns": part.provide(batch)["returns"] * batch.mask,
        "advantages": whiten(raw, batch.mask),
    }


@maps("gspo")
def gspo(case: Case) -> Outputs:
    ratio = {"gspo": sequence_ratio, "gspo-token": sequence_token_ratio}[case.param("variant")]
    objective = Objective(
        ratio=ratio,
        surrogate=ClippedSurrogate(case.param("clip_low"), case.param("clip_high")),
        aggregation=sequence_mean_token_mean,
    )
    batch, logp = case.batch("advantages", "logp_old"), case.tensor("logp")
    outputs = loss_and_grad(objective, batch, logp)
    return {**outputs, "seq_ratio": sequence_ratio(logp, batch)[:, 0].exp()}


@maps("dapo")
def dapo(case: Case) -> Outputs:
    correct, limit = case.tensor("correct"), case.param("max_response_len")
    overlong = SoftOverlong(
        case.param("overlong_buffer_len") / limit, case.param("overlong_penalty")
    )
    assert case.param("filter_metric") == "correct"
    worth = torch.where(correct > 0, case.param("reward_right"), case.param("reward_wrong"))
    batch = case.batch(
        "logp_old",
        rewards=worth.double(),
        lengths=case.tensor("lengths"),
        accuracy=correct,
        max_tokens=torch.full_like(correct, limit),
    )
    shaped = overlong(batch)
    keep = DynamicSampling()(batch)
    advantages = credit(GroupZScore(lone=1.0), shaped) * keep[:, None]
    kept = shaped.replace(advantages=advantages, loss_mask=shaped.mask & keep[:, None])
    objective = Objective(
        surrogate=ClippedSurrogate(
            case.param("clip_low"), case.param("clip_high"), case.param("clip_c")
        ),
        aggregation=AGGREGATIONS[case.param("agg")],
    )
    return {
        **loss_and_grad(objective, kept, case.tensor("logp")),
        "overlong_reward": shaped.rewards - batch.rewards,
        "rewards": shaped.rewards,
        "keep": keep.int(),
        "advantages": per_rollout(advantages, batch),
    }


@maps("ppo-clip")
def ppo_clip(case: Case) -> Outputs:
    objective = Objective(
        surrogate=ClippedSurrogate(
            case.param("clip_low"), case.param("clip_high"), case.param("clip_c")
        ),
        aggregation=AGGREGATIONS[case.param("agg")],
    )
    batch, logp = case.batch("advantages", "logp_old"), case.tensor("logp")
    outputs = loss_and_grad(objective, batch, logp)
    metrics = {n: v[batch.mask].mean() for n, v in outputs["metrics"].items()}
    bounded = (logp - batch["logp_old"]).clamp(-20, 20)
    return {
        **outputs,
        "clipfrac": metrics["clip/high"] + metrics["clip/low"],
        "clipfrac_lower": metrics.get("clip/dual", torch.tensor(0.0)),
        "approx_kl": -bounded[batch.mask].mean(),
    }


@maps("loss-aggregation")
def loss_aggregation(case: Case) -> Outputs:
    batch, losses = case.batch(), case.tensor("loss_mat")
    outputs = {}
    for mode in case.param("modes"):
        coefficients = _coefficients(case, mode, batch)
        objective = Objective(surrogate=_Given(losses))
        prepared = batch.replace(coefficients=coefficients, logp_old=torch.zeros_like(losses))
        loss = objective(Evaluation(torch.zeros_like(losses)), prepared).loss
        outputs[mode] = {"loss": loss, "grad_loss_mat": coefficients}
    return outputs


@dataclasses.dataclass(frozen=True)
class _Given:
    """A surrogate whose token losses are given."""

    losses: Tensor

    def __call__(self, log_ratio: Tensor, evaluation: Evaluation, batch: Batch) -> TokenLoss:
        return TokenLoss(self.losses)


def _coefficients(case: Case, mode: str, batch: Batch) -> Tensor:
    """Coefficients of one of verl's modes, with its overrides of the denominators."""
    scale = 1.0
    tokens = case.param("batch_num_tokens", None)
    rollouts = case.param("global_batch_size", None)
    factor = case.param("loss_scale_factor", None)
    parallel = case.param("dp_size", 1)
    live = int(batch.mask.any(1).sum())
    if mode == "seq-mean-token-sum-norm":
        length = factor or batch.width
        return ConstantLength(length)(batch) * len(batch)
    if mode == "token-mean" and tokens is not None:
        scale = float(batch.mask.sum()) / tokens
    if mode.startswith("seq-mean") and rollouts is not None:
        scale = live / rollouts
    return AGGREGATIONS[mode](batch) * scale * parallel
