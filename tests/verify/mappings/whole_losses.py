"""Vectors of the losses over rollouts, pairs and groups, and of the mixed objectives."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from polyopt.advantages.baselines import (
    GroupZScore,
    group_mean_baseline,
    raw_reward,
)
from polyopt.advantages.optimal_value import OptimalValueBaseline
from polyopt.advantages.soft_means import soft_mean
from polyopt.advantages.trajectories import Trajectories
from polyopt.batch import Batch
from polyopt.objectives.aggregation import sequence_mean_token_mean, token_mean
from polyopt.objectives.objective import Objective
from polyopt.objectives.partition import FlowBalance, log_partition
from polyopt.objectives.penalties import KLPenaltyK3
from polyopt.objectives.protocol import Evaluation
from polyopt.objectives.regressions import (
    ContrastiveGradient,
    FixedScaleRegression,
    GroupVarianceRegression,
    OptimalAdvantageRegression,
    RelativeRewardRegression,
    StandardisedRegression,
    TrajectoryBalance,
    movement,
)
from polyopt.replay.softmax import RewardSoftmaxReplay
from tests.verify.harness import Case, Outputs, loss_and_grad, maps
from tests.verify.mappings.systems import credit, per_rollout


def with_ghosts(batch: Batch, *columns: str) -> Batch:
    """Empty completions given one token of probability 1 at the end of a wider row.

    The authors' codes count an empty completion, whose log-probability is 0, where polyopt's
    rollouts without a token don't train.
    """
    empty = ~batch.mask.any(1)
    wide = {name: pad(batch[name], (0, 1)) for name in batch.columns if batch[name].dim() == 2}
    return batch.replace(mask=torch.cat([batch.mask, empty[:, None]], 1), **wide)


def narrowed(outputs: dict[str, Any]) -> dict[str, Any]:
    """The outputs of a batch with ghosts, without them."""
    return outputs | {"grad_logp": outputs["grad_logp"][:, :-1]}


def anchored(case: Case, *columns: str) -> Batch:
    """The case's batch for losses that don't read `logp_old`: there it is the current value."""
    return case.batch(*columns, logp_old=case.tensor("logp"))


def credited(estimator: Any, batch: Batch) -> Batch:
    """The batch with an estimator's advantages."""
    return batch.replace(advantages=credit(estimator, batch))


def scaled(outputs: dict[str, Any], factor: float) -> dict[str, Any]:
    """Loss and gradient times a factor: for codes that divide by another count."""
    grads = {n: v * factor for n, v in outputs.items() if n == "loss" or n.startswith("grad_")}
    return outputs | grads


@maps("rebel")
def rebel(case: Case) -> Outputs:
    """Each pair becomes a group of two, so any list of pairs can be told."""
    pairs, eta = case.ids("pairs"), case.param("eta")
    rows = pairs.flatten()
    rewards, logp = case.tensor("rewards"), case.tensor("logp")
    batch = with_ghosts(
        Batch.of(
            mask=case.tensor("mask")[rows],
            group=torch.arange(len(pairs)).repeat_interleave(2),
            rewards=rewards[rows],
            logp_old=case.tensor("logp_old")[rows],
        )
    )
    batch = credited(raw_reward, batch)
    moved = pad(logp[rows], (0, 1))
    part = RelativeRewardRegression(eta)
    outputs = narrowed(loss_and_grad(Objective(surrogate=part), batch, moved))
    rollouts = Trajectories.of(batch)
    move = movement(moved, batch["logp_old"], rollouts) - eta * rollouts.credit
    grad = torch.zeros_like(logp).index_add(0, rows, outputs["grad_logp"])
    return {**outputs, "residual": move[::2] - move[1::2], "grad_logp": grad}


@maps("gvpo")
def gvpo(case: Case) -> Outputs:
    part = GroupVarianceRegression(case.param("beta"))
    batch, logp = credited(group_mean_baseline, case.batch("logp_old")), case.tensor("logp")
    rollouts = Trajectories.of(batch)
    outputs = loss_and_grad(Objective(surrogate=part), batch, logp)
    return {
        **scaled(outputs, rollouts.groups),  # the code adds the groups up
        "advantages": rollouts.credit,
        "implicit_reward": part.beta * movement(logp, batch["logp_old"], rollouts),
    }


@maps("reg-grpo")
def reg_grpo(case: Case) -> Outputs:
    eps = case.param("eps")
    part = (FixedScaleRegression if case.param("detach_scale") else StandardisedRegression)(eps)
    batch = credited(GroupZScore(eps), case.batch("logp_old", "logp_ref"))
    objective = Objective(
        surrogate=part,
        kl=KLPenaltyK3(case.param("kl_coef")),
        aggregation=sequence_mean_token_mean,
    )
    logp, rollouts = case.tensor("logp"), Trajectories.of(batch)
    return {
        **loss_and_grad(objective, batch, logp),
        "target_advantage": rollouts.credit,
        "predicted_advantage": part.predicted(logp, rollouts),
    }


@maps("tba")
def tba(case: Case) -> Outputs:
    if "inv_temp" in case.params:
        buffer = RewardSoftmaxReplay(inverse_temperature=case.param("inv_temp"))
        return {"sampling_probs": buffer.probabilities(case.raw("rewards")).tolist()}
    part = TrajectoryBalance(case.param("beta"))
    batch, logp = credited(raw_reward, anchored(case, "logp_ref")), case.tensor("logp")
    rollouts = Trajectories.of(batch)
    move = movement(logp, batch["logp_ref"], rollouts)
    log_z = log_partition(move, rollouts.credit / part.beta, rollouts)
    first = [int((batch.group == g).nonzero()[0]) for g in torch.unique(batch.group)]
    return {**loss_and_grad(Objective(surrogate=part), batch, logp), "log_z": log_z[first]}


@maps("copg")
def copg(case: Case) -> Outputs:
    part = ContrastiveGradient(case.param("beta"))
    batch, logp = credited(raw_reward, anchored(case, "logp_ref")), case.tensor("logp")
    rewards = part.regularised_rewards(logp, Trajectories.of(batch))
    outputs = loss_and_grad(Objective(surrogate=part), batch, logp)
    return {**outputs, "regularised_reward": rewards}


@maps("a-star-po")
def a_star_po(case: Case) -> Outputs:
    offline, temperature = case.tensor("offline_rewards"), case.param("beta1")
    estimator: Any = OptimalValueBaseline(temperature or math.inf) if temperature >= 0 else raw_reward
    value = soft_mean(offline, temperature or math.inf) if temperature >= 0 else 0 * offline[:, 0]
    rows = case.ids("group")
    batch, logp = anchored(case, "logp_ref"), case.tensor("logp")
    batch = credited(estimator, batch.replace(reference_rewards=offline[rows]))
    part = OptimalAdvantageRegression(case.param("beta2"))
    objective = Objective(surrogate=part, aggregation=sequence_mean_token_mean)
    return {
        **loss_and_grad(objective, batch, logp),
        "v_star": value,
        "residual": part.residuals(logp, batch),
    }


@maps("flowrl")
def flowrl(case: Case) -> Outputs:
    part = FlowBalance(case.param("beta"), case.param("is_clip"))
    empty = ~case.tensor("mask").bool().any(1)
    batch = with_ghosts(case.batch("logp_old", "logp_ref", "advantages"))
    batch = batch.replace(advantages=batch["advantages"].masked_fill(empty[:, None], 0.0))
    logp, log_z = pad(case.tensor("logp"), (0, 1)), case.tensor("log_z").requires_grad_()
    values = log_z[:, None].expand_as(logp)
    objective = Objective(surrogate=part, aggregation=sequence_mean_token_mean)
    outputs = narrowed(loss_and_grad(objective, batch, logp, values=values))
    loss = objective(Evaluation(logp, values=values), batch).loss
    return {
        **outputs,
        "grad_log_z": torch.autograd.grad(loss, log_z)[0],
        "residual": part.residuals(logp, log_z.detach(), batch),
        "is_weight": part.weights(logp, batch),
    }
