"""Vectors of the methods that give credit to whole rollouts."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from polyopt.advantages.baselines import GroupZScore, LeaveOneOut, group_mean_baseline
from polyopt.advantages.histories import Moments, SingleStreamBaseline, SmoothStandardisation
from polyopt.advantages.optimal_value import OptimalValueBaseline
from polyopt.advantages.reference_points import (
    AdvantageMomentum,
    ConstantBaseline,
    ForwardCorrection,
    InterpolatedQuantileBaseline,
    LengthWeightedBaseline,
    QuantileBaseline,
    VirtualRewards,
    WeightedOutcomes,
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
from polyopt.advantages.soft_means import soft_mean
from polyopt.batch import Batch, Prompt
from polyopt.objectives.aggregation import sequence_mean_token_mean, token_mean
from polyopt.objectives.dynamic_clip import DynamicClip
from polyopt.objectives.objective import Objective
from polyopt.objectives.surrogates import ClippedSurrogate, PolicyGradient
from polyopt.prompts.beliefs import belief_from_scores, visit_weight
from polyopt.prompts.reference_values import prompt_action
from polyopt.rewards.noise import BackwardCorrection, FalseNegativeRate
from polyopt.rewards.policy_drift import drift
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
    prompts = torch.unique(ref_group)
    rewards, correct = (
        pad_sequence([case.tensor(name)[ref_group == g] for g in prompts], True, math.nan)
        for name in ("ref_rewards", "ref_correct")
    )
    batch = rollout_batch(case).replace(
        reference_rewards=rewards[torch.searchsorted(prompts, group)]
    )
    advantages = credit(OptimalValueBaseline(math.inf), batch)
    return {
        "static_v": soft_mean(batch["reference_rewards"], math.inf),
        "advantages": per_rollout(advantages, batch),
        "prompt_ids": prompts,
        "prompt_action": [prompt_action(float(c)) for c in soft_mean(correct, math.inf)],
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


@maps("spo-single-stream")
def spo_single_stream(case: Case) -> Outputs:
    if case.param("kind") == "init":
        least = case.param("rho_min")
        pairs = [belief_from_scores(scores, least) for scores in case.raw("offline_scores")]
        return {"alpha": [alpha for alpha, _ in pairs], "beta": [beta for _, beta in pairs]}
    distance = torch.zeros(len(case.raw("rewards")))
    if case.param("rho_type") == "constant":
        part = SingleStreamBaseline(least=case.param("rho"), most=case.param("rho"))
    else:
        least, most = case.param("rho_min"), case.param("rho_max")
        part = SingleStreamBaseline(case.param("d_half"), least, most)
        then, now = case.tensor("prev_logp_then"), case.tensor("prev_logp_now")
        distance = drift(then, now, case.tensor("prev_mask").bool())
    names = [str(i) for i in range(len(distance))]
    pairs = zip(case.raw("alpha"), case.raw("beta"), strict=True)
    part.beliefs.beliefs = dict(zip(names, pairs, strict=True))
    values = part.beliefs.values(names)
    weights = torch.tensor([visit_weight(value, case.param("explore")) for value in values])
    batch = rollout_batch(case).replace(
        group=torch.arange(len(names)),
        previous_drift=distance,
        prompts=tuple(Prompt(name, "") for name in names),
    )
    advantages = per_rollout(credit(part, batch), batch)
    return {
        "value": values,
        "advantages": advantages,
        "distance": distance,
        "rho": part.kept(distance),
        "new_alpha": [part.beliefs.beliefs[name][0] for name in names],
        "new_beta": [part.beliefs.beliefs[name][1] for name in names],
        "prompt_weight": weights,
        "prompt_prob": weights / weights.sum(),
    }


@maps("dcpo")
def dcpo(case: Case) -> Outputs:
    if case.has("logp"):
        part = DynamicClip(
            case.param("clip_low"), case.param("clip_high"), case.param("clip_ratio_c")
        )
        batch = case.batch("advantages", "logp_old")
        low, high = part.bounds(batch["logp_old"])
        objective = Objective(surrogate=part, aggregation=token_mean)
        loss = loss_and_grad(objective, batch, case.tensor("logp"))
        return {**loss, "ratio_low": low, "ratio_high": high}
    table = RolloutTable.of(rollout_batch(case))
    past = Moments(case.tensor("times"), case.tensor("old_mean"), case.tensor("old_std"))
    advantages, after = SmoothStandardisation().step(table, past)
    return {"advantages": advantages, "new_mean": after.mean, "new_std": after.std}


@maps("noisy-verifier")
def noisy_verifier(case: Case) -> Outputs:
    if case.has("rule_positives"):
        rate = FalseNegativeRate(
            case.raw("previous_rho1"), case.param("ema"), case.param("alpha"), case.param("beta")
        )
        share = case.param("appeal_fraction")
        counts = (case.raw("rule_positives"), case.raw("flipped_appeals"), share)
        return {"rho1_estimate": rate.estimate(*counts), "rho1_smoothed": rate.observe(*counts)}
    rates = (case.param("rho0"), case.param("rho1"))
    batch = case.batch("logp_old")
    corrected = BackwardCorrection(*rates, case.param("epsilon_c"))(batch)
    backward = credit(LeaveOneOut(lone=1.0), corrected) / case.param("scale_backward")
    forward = credit(ForwardCorrection(*rates, case.param("scale_forward")), batch)
    surrogate = ClippedSurrogate(case.param("clip"), case.param("clip"))
    objective = Objective(surrogate=surrogate, aggregation=sequence_mean_token_mean)
    loss = loss_and_grad(objective, batch.replace(advantages=forward), case.tensor("logp"))
    return {
        "backward_rewards": corrected.rewards,
        "backward_advantages": per_rollout(backward, batch),
        "forward_weights": per_rollout(credit(ForwardCorrection(*rates, 1.0), batch), batch),
        "forward_advantages": per_rollout(forward, batch),
        "forward_loss": loss["loss"],
        "grad_logp": loss["grad_logp"],
    }
