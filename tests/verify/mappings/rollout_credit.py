"""Vectors of the methods that give credit to whole rollouts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from polyopt.advantages.baselines import GroupZScore, group_mean_baseline
from polyopt.advantages.reference_points import (
    AdvantageMomentum,
    ConstantBaseline,
    InterpolatedQuantileBaseline,
    LengthWeightedBaseline,
    QuantileBaseline,
    VirtualRewards,
    WeightedOutcomes,
    static_baseline,
)
from polyopt.advantages.scales import (
    BatchScale,
    BetaScale,
    MixedScale,
    NoiseAwareWeight,
    PopulationZScore,
    RewardedShare,
    SignalShare,
)
from polyopt.batch import Batch
from polyopt.objectives.aggregation import token_mean
from polyopt.objectives.objective import Objective
from polyopt.objectives.surrogates import ClippedSurrogate, PolicyGradient
from polyopt.prompts.reference_values import prompt_action, static_values
from polyopt.rollout_table import RolloutTable
from polyopt.selection.outcomes import only_right, only_wrong
from tests.verify.harness import Case, Outputs, loss_and_grad, maps
from tests.verify.mappings.systems import AGGREGATIONS, credit, per_rollout, rollout_batch


def both_levels(advantages: Tensor, batch: Batch) -> dict[str, Tensor]:
    """Credit per rollout and per token."""
    return {"advantages": per_rollout(advantages, batch), "token_advantages": advantages}


def shaped(part: Any, base: Tensor, batch: Batch) -> Tensor:
    """Credit after one shaping part."""
    return part(base, batch)  # type: ignore[no-any-return]


def policy_gradient_loss(case: Case, aggregation: Any) -> Outputs:
    """Loss and gradient of plain policy gradient; the ratio plays no part."""
    logp = case.tensor("logp")
    batch = case.batch("advantages", logp_old=logp)
    objective = Objective(surrogate=PolicyGradient(), aggregation=aggregation)
    return loss_and_grad(objective, batch, logp)


def clipped_loss(case: Case, aggregation: Any = token_mean) -> Outputs:
    """Loss and gradient of the clipped surrogate."""
    surrogate = ClippedSurrogate(case.param("clip_low"), case.param("clip_high"))
    objective = Objective(surrogate=surrogate, aggregation=aggregation)
    return loss_and_grad(objective, case.batch("advantages", "logp_old"), case.tensor("logp"))


@maps("opo")
def opo(case: Case) -> Outputs:
    batch, part = case.batch(), LengthWeightedBaseline(lone=1.0)
    table = RolloutTable.of(batch)
    baseline = part.baseline(table).masked_fill(table.alone, 0.0)
    return {**both_levels(credit(part, batch), batch), "baseline": baseline}


@maps("gpg")
def gpg(case: Case) -> Outputs:
    if case.param("kind") == "loss":
        return policy_gradient_loss(case, AGGREGATIONS[case.param("agg")])
    batch, norm = case.batch(), case.param("f_norm")
    part: Any = RewardedShare(norm)
    if case.param("alpha") == "valid_groups":
        part = SignalShare(case.param("alpha_eps"), case.param("std_tol"), norm)
    advantages = shaped(part, credit(group_mean_baseline, batch), batch)
    return {**both_levels(advantages, batch), "alpha": part.alpha(batch)}


@maps("lite-ppo")
def lite_ppo(case: Case) -> Outputs:
    if case.param("kind") == "loss":
        return clipped_loss(case)
    batch = case.batch()
    return both_levels(credit(BatchScale(case.param("epsilon")), batch), batch)


@maps("qae")
def qae(case: Case) -> Outputs:
    kinds = {"linear": InterpolatedQuantileBaseline, "inverse_cdf": QuantileBaseline}
    make = kinds[case.param("interpolation")]
    part, batch = make(case.param("k"), case.param("epsilon"), lone=1.0), rollout_batch(case)
    baseline = part.baseline(RolloutTable.of(batch))
    return {"baseline": baseline, "advantages": per_rollout(credit(part, batch), batch)}


@maps("bnpo")
def bnpo(case: Case) -> Outputs:
    low, high = case.param("min_value"), case.param("max_value")
    part = BetaScale(low, high, case.param("max_weight"), lone=1.0)
    batch = rollout_batch(case)
    table = RolloutTable.of(batch)
    alpha, beta = part.shape(table)
    return {
        "alpha": alpha,
        "beta": beta,
        "weights": part.weights(table),
        "advantages": per_rollout(credit(part, batch), batch),
    }


@maps("mapo")
def mapo(case: Case) -> Outputs:
    part, batch = MixedScale(case.param("epsilon")), rollout_batch(case)
    return {
        "std_weight": part.z_score_weight(RolloutTable.of(batch)),
        "advantages": per_rollout(credit(part, batch), batch),
    }


@maps("pvpo")
def pvpo(case: Case) -> Outputs:
    group, ref_group = case.ids("group"), case.ids("ref_group")
    prompts, values = static_values(case.tensor("ref_rewards"), ref_group)
    _, accuracy = static_values(case.tensor("ref_correct"), ref_group)
    batch = rollout_batch(case).replace(static_value=values[torch.searchsorted(prompts, group)])
    return {
        "static_v": batch["static_value"],
        "advantages": per_rollout(credit(static_baseline, batch), batch),
        "prompt_ids": prompts,
        "prompt_action": [prompt_action(float(value)) for value in accuracy],
    }


@maps("aapo")
def aapo(case: Case) -> Outputs:
    if case.param("kind") == "loss":
        return policy_gradient_loss(case, token_mean)
    batch = rollout_batch(case).replace(reference_reward=case.tensor("ref_rewards"))
    base = credit(GroupZScore(case.param("epsilon")), batch)
    momentum = AdvantageMomentum(case.param("clip_low"), case.param("clip_high"))
    return {
        "group_advantages": per_rollout(base, batch),
        "advantages": per_rollout(shaped(momentum, base, batch), batch),
    }


@maps("ngrpo")
def ngrpo(case: Case) -> Outputs:
    if case.param("kind") == "loss":
        return clipped_loss(case)
    best, count = case.param("max_reward"), case.param("virtual_count")
    part, batch = VirtualRewards(best, count, case.param("epsilon"), lone=1.0), rollout_batch(case)
    return {"advantages": per_rollout(credit(part, batch), batch)}


@maps("two-grpo")
def two_grpo(case: Case) -> Outputs:
    make = {0: PopulationZScore, 1: GroupZScore}[case.param("ddof")]
    batch = rollout_batch(case)
    return {"advantages": per_rollout(credit(make(case.param("epsilon"), lone=1.0), batch), batch)}


@maps("psr-nsr")
def psr_nsr(case: Case) -> Outputs:
    if case.param("kind") == "loss":
        return clipped_loss(case)
    batch, weight = case.batch(), case.param("positive_weight")
    part, screen = {
        "positive": (ConstantBaseline(0.0), only_right),
        "negative": (ConstantBaseline(1.0), only_wrong),
        "weighted": (WeightedOutcomes(weight), lambda batch: torch.ones_like(batch.rewards)),
    }[case.param("variant")]
    return {"advantages": credit(part, batch), "selected": screen(batch)}


@maps("s-grpo-noise")
def s_grpo_noise(case: Case) -> Outputs:
    eps = case.param("epsilon")
    part, batch = NoiseAwareWeight(case.param("p"), eps), rollout_batch(case)
    advantages = shaped(part, credit(GroupZScore(eps), batch), batch)
    return {
        "weights": part.weights(RolloutTable.of(batch)),
        "advantages": per_rollout(advantages, batch),
    }
