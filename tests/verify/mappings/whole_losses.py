"""Vectors of the losses over rollouts, pairs and groups."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn.functional import pad

from polyopt.advantages.baselines import (
    GroupZScore,
    group_mean_baseline,
    raw_reward,
)
from polyopt.advantages.off_policy import (
    ShiftedMeanBaseline,
)
from polyopt.advantages.optimal_value import OptimalValueBaseline
from polyopt.advantages.soft_means import soft_mean
from polyopt.advantages.supervised import (
    SuccessRateWeight,
)
from polyopt.advantages.trajectories import Trajectories
from polyopt.batch import Batch
from polyopt.divergences import (
    K3,
    Divergence,
    ForwardKL,
    ReverseKL,
    UnnormalizedForwardKL,
)
from polyopt.objectives.aggregation import (
    ConstantLength,
    sequence_mean_token_mean,
    token_mean,
)
from polyopt.objectives.bellman import UniformPolicyRegression, uniform_value
from polyopt.objectives.classification import (
    AgainstOthers,
    Comparison,
    InDeviations,
    MeanLogProb,
    Movement,
    NegativeAware,
    OutcomeClassifier,
    Proxy,
)
from polyopt.objectives.contrastive import (
    KLConstraint,
    LengthTiltedContrast,
    LikelihoodContrast,
    RatioContrast,
    StepPenalty,
)
from polyopt.objectives.mirror_descent import mirror_descent_loss, soft_mirror_descent_loss
from polyopt.objectives.objective import Objective
from polyopt.objectives.partition import FlowBalance, log_partition
from polyopt.objectives.penalties import KLPenaltyK3
from polyopt.objectives.plackett_luce import TrajectorySoftmax, log_weights
from polyopt.objectives.preferences import PreferencePairs
from polyopt.objectives.protocol import Evaluation
from polyopt.objectives.ratios import sequence_product_ratio, token_ratio
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
from polyopt.objectives.surrogates import (
    ImportanceWeighted,
)
from polyopt.objectives.trust_regions import StepDivergence
from polyopt.replay.softmax import RewardSoftmaxReplay
from polyopt.selection.balance import class_balance
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
    estimator: Any = (
        OptimalValueBaseline(temperature or math.inf) if temperature >= 0 else raw_reward
    )
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


DIVERGENCES: dict[str, Divergence] = {"kl": ForwardKL(), "low_var_kl": UnnormalizedForwardKL()}
"""KL(old || new), by the names of DisCO's and DRPO's codes."""


def contrast(case: Case, part: LikelihoodContrast, kl_type: str, batch: Batch) -> dict[str, Any]:
    """Loss, scores and KL of a contrast with its constraint."""
    constraint = KLConstraint(case.param("delta"), case.param("beta"), DIVERGENCES[kl_type])
    objective = Objective(surrogate=part, kl=constraint, aggregation=token_mean)
    logp = case.tensor("logp")
    outputs = loss_and_grad(objective, batch, logp)
    scores = part.scores(logp, Trajectories.of(batch))
    official = part.value_of_code(outputs["loss"], scores, batch)
    return {**outputs, "kl": constraint.kl(logp, batch), "scores": scores, "official": official}


@maps("disco")
def disco(case: Case) -> Outputs:
    score = {"logL": LikelihoodContrast, "Lratio": RatioContrast}[case.param("score")]
    temperature = case.param("tau")
    part = score({"disco": temperature, "disco-b": math.inf}[case.param("variant")])
    batch = case.batch("logp_old", rewards=case.tensor("correct"))
    outputs = contrast(case, part, case.param("kl_type"), batch)
    return {**outputs, "seq_score": outputs["scores"], "loss_official": outputs["official"]}


@maps("drpo")
def drpo(case: Case) -> Outputs:
    part = LengthTiltedContrast(case.param("tau"), case.param("lam"))
    batch = case.batch("logp_old")
    limit = torch.full_like(batch.rewards, case.param("max_len"))
    outputs = contrast(case, part, case.param("kl"), batch.replace(max_tokens=limit))
    return {**outputs, "loss_paper": outputs["loss"], "loss_code": outputs["official"]}


@maps("trpa")
def trpa(case: Case) -> Outputs:
    objective = Objective(
        surrogate=PreferencePairs(case.param("beta"), case.param("anisotropy")),
        kl=StepPenalty(case.param("tr_kl_coef"), K3(bound=10.0)),
        aggregation=token_mean,
    )
    batch = case.batch("logp_old", "logp_ref", level=case.ids("levels"))
    return loss_and_grad(objective, batch, case.tensor("logp"))


@maps("nft")
def nft(case: Case) -> Outputs:
    rarity, boost = {"one_minus_rate": (1.0, 0.0), "sqrt_odds": (0.5, 0.5), "none": (0.0, 0.0)}[
        case.param("prompt_weight")
    ]
    estimator = SuccessRateWeight(rarity, boost, case.param("neg_weight"))
    batch, logp = case.batch("logp_old", rewards=case.tensor("correct")), case.tensor("logp")
    batch = credited(estimator, batch.replace(**estimator.provide(batch)))
    rollouts, divisor = len(batch), case.param("token_divisor")
    token = case.param("ratio_type") == "token"
    objective = Objective(
        ratio=token_ratio if token else sequence_product_ratio,
        surrogate=NegativeAware(case.param("floor")),
        aggregation=ConstantLength(divisor) if token else sequence_mean_token_mean,
    )
    outputs = scaled(loss_and_grad(objective, batch, logp), rollouts)  # the code adds rollouts up
    return {**outputs, "correct_rate": batch["success_rate"]}


PROXIES: dict[str, Proxy] = {"log_ratio_sum": Movement(), "mean_logp": MeanLogProb()}


@maps("pacs")
def pacs(case: Case) -> Outputs:
    assert case.param("std_normalize")
    comparison: Comparison = {"rloo": AgainstOthers(), "grpo": InDeviations()}[
        case.param("estimator")
    ]
    part = OutcomeClassifier(case.param("beta"), PROXIES[case.param("proxy")], comparison)
    batch = case.batch("logp_old", rewards=case.tensor("correct"))
    if {"question": True, "none": False}[case.param("weight_mode")]:
        batch = class_balance(batch)
    logp, rollouts = case.tensor("logp"), Trajectories.of(batch)
    scores = part.scores(logp, rollouts)
    return {
        **loss_and_grad(Objective(surrogate=part), batch, logp),
        "score": scores,
        "weights": rollouts.weight(scores),
    }


@maps("haepo")
def haepo(case: Case) -> Outputs:
    part = TrajectorySoftmax(case.param("entropy_coef"), case.param("kl_coef"))
    batch, logp = credited(raw_reward, anchored(case, "logp_ref")), case.tensor("logp")
    weights = log_weights(logp, Trajectories.of(batch)).exp()
    return {**loss_and_grad(Objective(surrogate=part), batch, logp), "weights": weights}


@maps("rover")
def rover(case: Case) -> Outputs:
    part = UniformPolicyRegression(case.param("rho"), case.param("next_q_scale"))
    logits, tokens = case.tensor("logits").requires_grad_(), case.ids("tokens")[..., None]
    old = case.tensor("logits_old")
    logp, logp_old = (x.log_softmax(-1).gather(-1, tokens)[..., 0] for x in (logits, old))
    uniform = uniform_value(logits).detach()
    batch = case.batch(logp_old=logp_old, uniform_value_old=uniform_value(old))
    alone = ShiftedMeanBaseline(shift=0.0, lone=1.0)
    batch = credited(GroupZScore(lone=1.0) if case.param("std_normalize") else alone, batch)
    objective = Objective(surrogate=part)
    loss = objective(Evaluation(logp, uniform_value=uniform), batch).loss
    return {
        **loss_and_grad(objective, batch, logp.detach(), uniform_value=uniform),
        "grad_logits": torch.autograd.grad(loss, logits)[0],
        "advantages": per_rollout(batch["advantages"], batch),
        "logp": logp,
        "logp_old": logp_old,
        "q": part.q(logp, batch),
        "target": part.target(uniform, batch),
    }


@maps("mdpo")
def mdpo(case: Case) -> Outputs:
    if case.has("mask"):
        divergence = StepDivergence(ReverseKL(), 1 / case.param("step_size"))
        objective = Objective(surrogate=ImportanceWeighted(), trust_region=(divergence,))
        batch = case.batch("advantages", "logp_old")
        return loss_and_grad(objective, batch, case.tensor("logp"))
    logits, old = case.tensor("logits").requires_grad_(), case.tensor("logits_old")
    if case.has("q_values"):
        values = case.tensor("q_values")
        loss = soft_mirror_descent_loss(
            logits, old, values, case.param("kl_coef"), case.param("entropy_coef")
        )
    else:
        actions, advantages = case.ids("actions"), case.tensor("advantages")
        loss = mirror_descent_loss(logits, old, actions, advantages, case.param("step_size"))
    return {"loss": loss, "grad_logits": torch.autograd.grad(loss, logits)[0]}
