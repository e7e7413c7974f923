"""Vectors of ratios, clips, trust regions, KL forms and off-policy corrections."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from polyopt import divergences
from polyopt.advantages.baselines import GroupZScore
from polyopt.batch import Batch
from polyopt.divergences import (
    K1,
    K2,
    K3,
    AbsoluteLogRatio,
    ForwardKL,
    ReverseKL,
    UnnormalizedForwardKL,
    UnnormalizedReverseKL,
)
from polyopt.objectives import penalties, ratios
from polyopt.objectives.adaptive_clips import (
    BalancedClip,
    SecondMomentClip,
    SecondMomentMask,
    harmful,
    second_moment,
)
from polyopt.objectives.aggregation import (
    LengthWeighted,
    sequence_mean_token_mean,
)
from polyopt.objectives.covariance import ClipCov, KLCov, covariance
from polyopt.objectives.objective import Objective
from polyopt.objectives.protocol import Evaluation
from polyopt.objectives.regularized import (
    ReverseKLClip,
    UnnormalizedReverseKLClip,
)
from polyopt.objectives.soft_clips import (
    DiscoveredDrift,
    GradientPreservingClip,
    LearnedDrift,
    LearnedDriftOverClip,
    LogClippedGradient,
    QuadraticSurrogate,
)
from polyopt.objectives.surrogates import (
    ClippedImportanceWeight,
    ClippedSurrogate,
    ImportanceWeighted,
)
from polyopt.objectives.trust_regions import (
    ClipMask,
    StepDivergence,
    StepDivergenceScore,
    policy_drift,
)
from polyopt.rewards.kl import AdaptiveKLInReward, DivergenceInReward
from tests.verify.harness import Case, Outputs, loss_and_grad, maps
from tests.verify.mappings.systems import AGGREGATIONS, credit, per_rollout


def masked_mean(values: Tensor, batch: Batch) -> Tensor:
    return values[batch.mask].mean()


def pairs(mask: Tensor) -> list[list[int]]:
    return mask.nonzero().tolist()


@maps("kl-estimators")
def kl_estimators(case: Case) -> Outputs:
    if case.has("rewards"):
        return _kl_in_reward(case)
    names = case.param("estimators")
    if names == ["full"]:
        return {"full": _full_kl(case)}
    made: dict[str, Any] = {
        "k1": penalties.KLPenaltyK1,
        "abs": penalties.KLPenaltyAbsolute,
        "k2": penalties.KLPenaltyK2,
        "k3": lambda c: penalties.KLPenaltyK3(c, bound=10.0),
        "k1+": penalties.KLPenaltyK1Plus,
        "k3+": lambda c: penalties.KLPenaltyK3Plus(c, bound=10.0),
    }
    batch = case.batch("logp_ref", advantages=torch.zeros_like(case.tensor("logp")))
    batch, logp = batch.replace(logp_old=case.tensor("logp")), case.tensor("logp")
    outputs = {}
    for name in names:
        part = made[name](case.param("coef"))
        objective = Objective(kl=part, aggregation=AGGREGATIONS[case.param("agg")])
        value = part(Evaluation(logp), batch).loss.masked_fill(~batch.mask, 0.0)
        outputs[name] = {"kl": value, **loss_and_grad(objective, batch, logp)}
    return outputs


def _full_kl(case: Case) -> Outputs:
    logits, batch = case.tensor("logits").requires_grad_(), case.batch()
    kl = divergences.exact_kl(logits, case.tensor("logits_ref")) * batch.mask
    loss = case.param("coef") * (AGGREGATIONS[case.param("agg")](batch) * kl).sum()
    return {"kl": kl, "loss": loss, "grad_logits": torch.autograd.grad(loss, logits)[0]}


def _kl_in_reward(case: Case) -> Outputs:
    assert case.param("reward_position") == "last trained token"
    batch = case.batch("lengths", "logp_old", "logp_ref")
    assert case.param("n_steps") == len(batch)
    shapes = {"k1": K1(), "abs": AbsoluteLogRatio(), "k2": K2(), "k3": K3(10.0)}
    outputs = {}
    for name, divergence in shapes.items():
        fixed = DivergenceInReward(case.param("coef"), divergence)
        part = AdaptiveKLInReward(
            case.param("coef"), case.param("target_kl"), case.param("horizon"), divergence
        )
        outputs[name] = {
            "token_rewards": part(batch)["token_rewards"],
            "current_kl": part.measured,
            "next_coef_adaptive": part.current,
            "next_coef_fixed": fixed.coefficient,
        }
    return outputs


@maps("cispo")
def cispo(case: Case) -> Outputs:
    surrogate = ClippedImportanceWeight(case.param("clip_low"), case.param("clip_high"))
    objective = Objective(surrogate=surrogate, aggregation=AGGREGATIONS[case.param("agg")])
    batch = case.batch("advantages", "logp_old")
    outputs = loss_and_grad(objective, batch, case.tensor("logp"))
    return {**outputs, "clipfrac": masked_mean(outputs["metrics"]["weight/bounded"], batch)}


@maps("gmpo")
def gmpo(case: Case) -> Outputs:
    ratio = ratios.GeometricMeanRatio(case.param("clip_low"), case.param("clip_high"))
    objective = Objective(ratio=ratio, surrogate=ImportanceWeighted())
    batch, logp = case.batch("advantages", "logp_old"), case.tensor("logp")
    # the port's mean over rollouts counts empty ones; polyopt's does not
    share = float(batch.mask.any(1).double().mean())
    batch = batch.replace(coefficients=sequence_mean_token_mean(batch) * share)
    return {
        **loss_and_grad(objective, batch, logp),
        "seq_ratio": ratio(logp, batch)[:, 0].exp(),
    }


@maps("m2po")
def m2po(case: Case) -> Outputs:
    batch, logp = case.batch("advantages", "logp_old"), case.tensor("logp")
    d, aggregation = ratios.token_ratio(logp, batch), AGGREGATIONS[case.param("agg")]
    before = second_moment(d, harmful(d, batch))
    if case.param("variant") == "clip":
        clip = SecondMomentClip(case.param("m2_budget"))
        tau = clip.bound(d, batch)
        objective = Objective(surrogate=clip, aggregation=aggregation)
        return {
            **loss_and_grad(objective, batch, logp),
            "m2_before": before,
            "ratio_low": math.exp(-tau),
            "ratio_high": min(math.exp(tau), 1e5),  # the authors' "no bound"
        }
    part = SecondMomentMask(case.param("m2_budget"))
    objective = Objective(
        surrogate=ImportanceWeighted(), trust_region=(part,), aggregation=aggregation
    )
    kept = part.kept(d, batch)
    return {
        **loss_and_grad(objective, batch, logp),
        "m2_before": before,
        "m2_mask": kept.int(),
        "m2_after": second_moment(d, harmful(d, batch) & kept),
    }


@maps("bapo")
def bapo(case: Case) -> Outputs:
    part = BalancedClip(
        low=case.param("low_start"),
        low_most=case.param("low_max"),
        low_step=case.param("low_step"),
        high=case.param("high_start"),
        high_most=case.param("high_max"),
        high_step=case.param("high_step"),
        target=case.param("target"),
        dual_clip=case.param("clip_c"),
    )
    assert case.param("eps") == 1e-8
    batch, logp = case.batch("advantages", "logp_old"), case.tensor("logp")
    objective = Objective(surrogate=part, aggregation=AGGREGATIONS[case.param("agg")])
    d = ratios.token_ratio(logp, batch)
    low, high = part.bounds(d, batch)
    balance = part.balance(divergences.bounded_exp(d), batch, low, high)
    return {
        **loss_and_grad(objective, batch, logp),
        "ratio_low": low,
        "ratio_high": high,
        "pos_neg_ratio": None if math.isinf(balance) else balance,
    }


@maps("gppo")
def gppo(case: Case) -> Outputs:
    part = GradientPreservingClip(
        case.param("clip_low"), case.param("clip_high"), case.param("clip_c")
    )
    objective = Objective(surrogate=part, aggregation=AGGREGATIONS[case.param("agg")])
    return loss_and_grad(objective, case.batch("advantages", "logp_old"), case.tensor("logp"))


@maps("clip-cov-kl-cov")
def clip_cov_kl_cov(case: Case) -> Outputs:
    batch, logp = case.batch("advantages", "logp_old"), case.tensor("logp")
    aggregation = AGGREGATIONS[case.param("agg")]
    if case.param("variant") == "kl-cov":
        kl_cov = KLCov(case.param("ratio"), case.param("kl_coef"))
        objective = Objective(
            surrogate=ImportanceWeighted(), trust_region=(kl_cov,), aggregation=aggregation
        )
        chosen = kl_cov.chosen(logp, batch)
        return {**loss_and_grad(objective, batch, logp), "selected": pairs(chosen)}
    part = ClipCov(case.param("ratio"), case.param("cov_low"), case.param("cov_high"))
    surrogate = ClippedSurrogate(case.param("clip_low"), case.param("clip_high"))
    if case.has("selected"):  # the recorded draw: those tokens come first
        draws = torch.ones_like(logp)
        for row, token in case.raw("selected"):
            draws[row, token] = 0.0
        batch = batch.replace(draws=draws)
    objective = Objective(surrogate=surrogate, trust_region=(part,), aggregation=aggregation)
    free = surrogate(ratios.token_ratio(logp, batch), Evaluation(logp), batch)
    outputs = loss_and_grad(objective, batch, logp)
    return {
        **outputs,
        "covariance": covariance(logp, batch),
        "candidates": pairs(part.candidates(free, logp, batch)),
        "budget": part.budget(batch),
        "selected": pairs(outputs["metrics"]["mask/covariance"] > 0),
    }


@maps("cpgd")
def cpgd(case: Case) -> Outputs:
    batch, logp = case.batch("advantages", "logp_old"), case.tensor("logp")
    aggregation = AGGREGATIONS[case.param("agg")]
    clip = LogClippedGradient(case.param("clip_low"), case.param("clip_high"))
    drift = policy_drift(case.param("drift_coef"), case.param("drift_cap"))
    policy = loss_and_grad(Objective(surrogate=clip, aggregation=aggregation), batch, logp)
    both = Objective(surrogate=clip, trust_region=(drift,), aggregation=aggregation)
    pull = policy_drift(1.0, case.param("drift_cap"))
    still = batch.replace(advantages=torch.zeros_like(logp))
    alone = Objective(surrogate=clip, trust_region=(pull,), aggregation=aggregation)
    return {
        **loss_and_grad(both, batch, logp),
        "policy_loss": policy["loss"],
        "grad_policy_logp": policy["grad_logp"],
        "drift_loss": loss_and_grad(alone, still, logp)["loss"],
    }


@maps("spo-simple")
def spo_simple(case: Case) -> Outputs:
    part = QuadraticSurrogate(case.param("eps"))
    objective = Objective(surrogate=part, aggregation=AGGREGATIONS[case.param("agg")])
    return loss_and_grad(objective, case.batch("advantages", "logp_old"), case.tensor("logp"))


@maps("delta-l")
def delta_l(case: Case) -> Outputs:
    weighted = LengthWeighted(case.param("alpha"), case.param("max_len"))
    surrogate = ClippedSurrogate(
        case.param("clip_low"), case.param("clip_high"), case.param("clip_c")
    )
    batch = case.batch("logp_old", "lengths")
    assert (batch["lengths"] == batch.mask.sum(1)).all()
    batch = batch.replace(advantages=credit(GroupZScore(lone=1.0), batch))
    objective = Objective(surrogate=surrogate, aggregation=weighted)
    factors = weighted.factors(batch)
    return {
        **loss_and_grad(objective, batch, case.tensor("logp")),
        "length_factor": factors,
        "scaled_advantages": per_rollout(batch["advantages"], batch) * factors,
    }


RPG_FORMS: dict[str, Any] = {
    "fkl": ForwardKL(),
    "rkl": ReverseKL(),
    "ufkl": UnnormalizedForwardKL(),
    "urkl": UnnormalizedReverseKL(),
}


@maps("rpg")
def rpg(case: Case) -> Outputs:
    batch, logp = case.batch("advantages", "logp_old"), case.tensor("logp")
    if "eps_low" not in case.params:
        style: Any = _rpg_differentiable
    elif "c" not in case.params:
        style = _rpg_hard_clip
    else:
        with_loss = all("loss" in outputs for outputs in case.expected.values())
        style = _rpg_algorithm_1 if with_loss else _rpg_dual_clip
    return {form: style(case, form, batch, logp) for form in case.param("forms")}


def _rpg_loss(
    case: Case, batch: Batch, logp: Tensor, surrogate: Any, *limits: Any
) -> dict[str, Any]:
    aggregation = AGGREGATIONS[case.param("agg")]
    objective = Objective(surrogate=surrogate, trust_region=limits, aggregation=aggregation)
    return loss_and_grad(objective, batch, logp)


def _rpg_differentiable(case: Case, form: str, batch: Batch, logp: Tensor) -> Outputs:
    penalty = StepDivergence(RPG_FORMS[form], case.param("beta"))
    outputs = _rpg_loss(case, batch, logp, ImportanceWeighted(), penalty)
    if form == "urkl":  # the table's w d - w lacks the constant 1 that makes it a divergence
        outputs["loss"] -= case.param("beta") * AGGREGATIONS[case.param("agg")](batch).sum()
    bound = None if form == "fkl" else 10.0
    alone = StepDivergence(RPG_FORMS[form], 1.0, bound)
    still = batch.replace(advantages=torch.zeros_like(logp))
    kl = _rpg_loss(case, still, logp, ImportanceWeighted(), alone)
    return {
        **outputs,
        "kl_token": kl["metrics"]["kl_old"].masked_fill(~batch.mask, 0.0),
        "kl_loss": kl["loss"],
        "grad_kl_logp": kl["grad_logp"],
    }


def _rpg_score(case: Case, form: str) -> StepDivergenceScore:
    low, high = 1 - case.param("eps_low"), 1 + case.param("eps_high")
    return StepDivergenceScore(RPG_FORMS[form], case.param("beta"), low, high)


def _rpg_hard_clip(case: Case, form: str, batch: Batch, logp: Tensor) -> Outputs:
    weight = ClippedImportanceWeight(case.param("eps_low"), case.param("eps_high"))
    return _rpg_loss(case, batch, logp, weight, _rpg_score(case, form))


def _rpg_dual_clip(case: Case, form: str, batch: Batch, logp: Tensor) -> Outputs:
    mask = ClipMask(case.param("eps_low"), case.param("eps_high"), case.param("c"))
    return _rpg_loss(case, batch, logp, ImportanceWeighted(), _rpg_score(case, form), mask)


def _rpg_algorithm_1(case: Case, form: str, batch: Batch, logp: Tensor) -> Outputs:
    made = {"rkl": ReverseKLClip, "urkl": UnnormalizedReverseKLClip}[form]
    numbers = [case.param(name) for name in ("beta", "eps_low", "eps_high", "c")]
    return _rpg_loss(case, batch, logp, made(*numbers))


@maps("discovered-drift")
def discovered_drift(case: Case) -> Outputs:
    if case.has("net_w1"):
        net = (case.tensor("net_w1"), case.tensor("net_w2"), case.param("offset"))
        clip = case.param("eps_clip")
        over_clip = case.param("ppo_init")
        part: Any = LearnedDriftOverClip(*net, clip) if over_clip else LearnedDrift(*net)
    else:
        part = DiscoveredDrift(case.param("alpha"), case.param("beta"))
    batch, logp = case.batch("advantages", "logp_old"), case.tensor("logp")
    drift = part.drift(ratios.token_ratio(logp, batch), batch["advantages"])
    outputs = loss_and_grad(Objective(surrogate=part), batch, logp)
    return {**outputs, "drift": drift.masked_fill(~batch.mask, 0.0)}
