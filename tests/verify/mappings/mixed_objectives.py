"""Vectors of the objectives that mix sources: stale rollouts, teachers, demonstrations, hints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from polyopt.advantages.baselines import (
    GroupZScore,
    LeaveOneOut,
    group_mean_baseline,
)
from polyopt.advantages.off_policy import (
    Damped,
    ExponentialWeight,
    ShiftedMeanBaseline,
    SoftMeanBaseline,
)
from polyopt.advantages.own_rollouts import OwnMeanBaseline, OwnZScore
from polyopt.advantages.scales import PopulationZScore
from polyopt.advantages.supervised import (
    MixedGroupReward,
    every_rollout,
    positive_reward,
)
from polyopt.advantages.token_groups import TokenGroupAverage
from polyopt.advantages.trajectories import Trajectories, success
from polyopt.batch import Batch
from polyopt.divergences import (
    K2,
    ForwardKL,
)
from polyopt.groups import group_max
from polyopt.objectives.aggregation import (
    ConstantLength,
    sequence_mean_token_mean,
    sequence_mean_token_sum,
    token_mean,
)
from polyopt.objectives.demonstrations import (
    GroupAlignment,
    MixedPolicySurrogate,
    hinted_ratio,
)
from polyopt.objectives.distillation import TeacherKL
from polyopt.objectives.heterogeneous import HeterogeneousClip
from polyopt.objectives.objective import Objective
from polyopt.objectives.penalties import EntropyBonus, KLPenaltyK3
from polyopt.objectives.protocol import Evaluation, Surrogate, TrustRegion
from polyopt.objectives.ratio_masks import RingMask, TwoSideMask
from polyopt.objectives.ratios import sequence_product_ratio, sequence_ratio, token_ratio
from polyopt.objectives.surrogates import (
    ClippedImportanceWeight,
    ClippedSurrogate,
    ImportanceWeighted,
    PolicyGradient,
)
from polyopt.objectives.trust_regions import ClipMask, StepDivergence
from polyopt.objectives.verification import VerdictLikelihood, verifier_score
from polyopt.rollout_table import RolloutTable
from polyopt.selection.guidance import hints_only_on_failure
from polyopt.selection.teaching import AnnealedTeacher, teach_failures, teach_unsolved
from polyopt.selection.traces import (
    accuracy_scores,
    accuracy_trace_weights,
    heaviest_only,
    likelihood_scores,
    likelihood_trace_weights,
    shares,
    weighted,
)
from tests.verify.harness import Case, Outputs, loss_and_grad, maps
from tests.verify.mappings.systems import per_rollout
from tests.verify.mappings.whole_losses import anchored, credited, scaled


@maps("kdrl")
def kdrl(case: Case) -> Outputs:
    assert case.param("std_ddof") == 1
    annealed = AnnealedTeacher(
        case.param("beta_init"), case.param("beta_delta"), case.param("beta_min")
    )
    annealed.step = case.raw("step")
    masks: dict[str, tuple[Any, ...]] = {
        "none": (),
        "response": (teach_failures,),
        "group": (teach_unsolved,),
    }
    batch = case.batch("logp_old", "logp_teacher")
    batch = credited(GroupZScore(case.param("adv_eps")), batch)
    batch = batch.replace(teacher_weight=torch.ones_like(batch.rewards))
    for mask in masks[case.param("kd_masking")]:
        batch = mask(batch)
    kept, weight = batch["teacher_weight"], annealed.weight
    objective = Objective(surrogate=ImportanceWeighted(), kl=TeacherKL())
    return {
        **loss_and_grad(objective, annealed(batch), case.tensor("logp")),
        "advantages": per_rollout(batch["advantages"], batch),
        "beta": weight,
        "kd_keep": kept,
    }


def padding_credit(batch: Batch) -> Tensor:
    """What HAPO's code leaves at padding: the score of a reward of 0 (0 after the fallback).

    Each group gets a rollout without tokens and with reward 0, which moves no statistic.
    """
    part, groups, n = TokenGroupAverage(), torch.unique(batch.group), len(batch)
    table = RolloutTable.of(
        Batch.of(
            mask=torch.cat([batch.mask, torch.zeros(len(groups), batch.width)]),
            group=torch.cat([batch.group, groups]),
            rewards=torch.cat([batch.rewards, torch.zeros(len(groups))]),
        )
    )
    scores = part.token_scores(table)
    coarse = group_max(scores.abs(), table.group) >= part.largest
    ghosts = scores[n:].masked_fill(coarse[n:], 0.0)
    return ghosts[batch.group_index][:, None].expand(-1, batch.width)


@maps("hapo-heterogeneous")
def hapo_heterogeneous(case: Case) -> Outputs:
    part = HeterogeneousClip(
        case.param("clip_low"),
        case.param("clip_high"),
        case.param("clip_alpha"),
        case.param("adv_beta"),
        case.param("clip_c"),
        case.param("entropy_pivot"),
        certain=1.0,  # the code divides negative scores by their minimum, which is negative too
    )
    batch, logp = credited(TokenGroupAverage(), case.batch("logp_old")), case.tensor("logp")
    entropy = case.tensor("entropy")
    scale = part.scale(entropy, batch)
    scores = scale.scores(entropy)
    low, high = part.ranges(scores)
    moved = part.redistributed(batch["advantages"], token_ratio(logp, batch), scores)
    temperatures = scale.temperatures(
        case.tensor("next_token_entropy"), case.param("temperature"), case.param("temperature_tau")
    )
    return {
        **loss_and_grad(Objective(surrogate=part), batch, logp, entropy=entropy),
        "h_hat": scores * batch.mask,
        "stats": [scale.pivot, scale.std, scale.rise, scale.fall],
        "advantages_tga": torch.where(batch.mask, batch["advantages"], padding_credit(batch)),
        "clip_low": low * batch.mask,
        "clip_high": high * batch.mask,
        "advantages_redistributed": moved * batch.mask,
        "next_temperature": temperatures,
    }


@maps("rapid")
def rapid(case: Case) -> Outputs:
    ratio = {"token": token_ratio, "sequence": sequence_product_ratio}[case.param("level")]
    part = ClippedImportanceWeight(clip_high=case.param("weight_cap") - 1)
    objective = Objective(ratio=ratio, surrogate=part, aggregation=sequence_mean_token_sum)
    batch, logp = credited(group_mean_baseline, case.batch("logp_old")), case.tensor("logp")
    ones = torch.ones_like(logp)
    weights = part(ratio(logp, batch), Evaluation(ones), batch.replace(advantages=-ones)).loss
    return {
        **loss_and_grad(objective, batch, logp),
        "advantages": per_rollout(batch["advantages"], batch),
        "weights": weights * batch.mask,
    }


@maps("grao")
def grao(case: Case) -> Outputs:
    """The reference answers become rows of their prompts."""
    assert case.param("std_ddof") == 0
    eps, references = case.param("adv_eps"), case.tensor("ref_rewards")
    estimator: Any = {
        "outputs": OwnZScore(eps, math.inf),
        "outputs+reference": PopulationZScore(eps),
    }[case.param("stats_over")]
    own, prompts = len(case.raw("rewards")), torch.unique(case.ids("group"))
    batch = Batch.of(
        mask=torch.cat([case.tensor("mask"), case.tensor("ref_answer_mask")]),
        group=torch.cat([case.ids("group"), prompts]),
        rewards=torch.cat([case.tensor("rewards"), references]),
        demonstration=torch.cat([torch.zeros(own), torch.ones(len(references))]),
    )
    logp = torch.cat([case.tensor("logp"), case.tensor("ref_answer_logp")])
    batch = credited(estimator, batch.replace(logp_old=logp))
    part = GroupAlignment(case.param("beta"), case.param("lam"))
    outputs = loss_and_grad(Objective(surrogate=part), batch, logp)
    advantages, grad = per_rollout(batch["advantages"], batch), outputs["grad_logp"]
    return {
        "loss": outputs["loss"],
        "grad_logp": grad[:own],
        "grad_ref_answer_logp": grad[own:],
        "advantages": advantages[:own],
        "ref_advantages": advantages[own:],
    }


@maps("variational-reasoning")
def variational_reasoning(case: Case) -> Outputs:
    if case.has("logp"):
        scores, logp = case.tensor("scores"), case.tensor("logp")
        batch = credited(every_rollout, case.batch(logp_old=logp))
        rollouts = Trajectories.of(batch)
        share = shares(scores, rollouts)
        objective = Objective(surrogate=PolicyGradient(), aggregation=sequence_mean_token_sum)
        return {**loss_and_grad(objective, weighted(share, rollouts), logp), "weights": share}
    think, answer = case.tensor("think_mask"), case.tensor("answer_mask")
    answers = case.tensor("answer_logp")
    batch = Batch.of(
        mask=torch.cat([think, answer], 1),
        accuracy=case.tensor("accuracy"),
        logp_ref=torch.cat([case.tensor("think_logp_prior"), answers], 1),
        logp_sampler=torch.cat([case.tensor("think_logp_posterior"), answers], 1),
        answer_tokens=torch.cat([torch.zeros_like(think), torch.ones_like(answer)], 1),
    )
    score, weigh = {
        "gml": (likelihood_scores, likelihood_trace_weights),
        "acc": (accuracy_scores, accuracy_trace_weights),
    }[case.param("estimator")]
    chosen = weigh(batch)
    weight = Trajectories.of(chosen).weight(batch.rewards) / len(batch)
    best = heaviest_only(chosen).loss_mask.any(1).nonzero().flatten().tolist()
    return {
        "scores": score(Trajectories.of(batch)),
        "weights": weight,
        "best_index": best[0] if best else -1,
    }


@maps("rl-v")
def rl_v(case: Case) -> Outputs:
    clip = case.param("eps_clip")
    batch = credited(LeaveOneOut(), case.batch("logp_old"))
    verdicts = case.tensor("verdict_logits").requires_grad_()
    verification = VerdictLikelihood(case.param("lam"))(verdicts, success(batch))
    outputs = loss_and_grad(
        Objective(surrogate=ClippedSurrogate(clip, clip)), batch, case.tensor("logp")
    )
    return {
        **outputs,
        "loss": outputs["loss"] + verification.detach(),
        "grad_verdict_logits": torch.autograd.grad(verification, verdicts)[0],
        "advantages": per_rollout(batch["advantages"], batch),
        "verifier_score": verifier_score(verdicts),
    }


@maps("raft-reinforce-rej")
def raft_reinforce_rej(case: Case) -> Outputs:
    estimator = {"raft": positive_reward, "reinforce_rej": MixedGroupReward(lone=1.0)}[
        case.param("algorithm")
    ]
    clip, dual = case.param("eps_clip"), case.param("clip_c")
    surrogate: Surrogate = {
        "vanilla": PolicyGradient(),
        "plusplus": ClippedSurrogate(clip, clip, dual),
    }[case.param("policy_loss")]
    batch = credited(estimator, case.batch("logp_old"))
    return {
        **loss_and_grad(Objective(surrogate=surrogate), batch, case.tensor("logp")),
        "advantages": per_rollout(batch["advantages"], batch),
    }


@maps("rl-plus")
def rl_plus(case: Case) -> Outputs:
    clip = case.param("eps_clip") if case.param("clip_on_policy") else None
    case.param("eps_clip")
    batch = case.batch("logp_old", demonstration=case.tensor("external"))
    batch = credited(OwnMeanBaseline(lone=1.0), batch)
    by_width = {"divide_by_T": True, "token_mean": False}[case.param("aggregate")]
    objective = Objective(
        surrogate=MixedPolicySurrogate(case.param("gamma"), clip),
        aggregation=ConstantLength(batch.width) if by_width else token_mean,
    )
    outputs = loss_and_grad(objective, batch, case.tensor("logp"))
    return {
        **scaled(outputs, len(batch) if by_width else 1),  # the script adds rollouts up
        "advantages": per_rollout(batch["advantages"], batch),
    }


@maps("guide")
def guide(case: Case) -> Outputs:
    assert case.param("std_ddof") == 0
    sampled, logp = case.tensor("logp_old_sampling"), case.tensor("logp_no_hint")
    batch = case.batch("guided", logp_old=sampled, logp_sampler=sampled)
    used = hints_only_on_failure(batch)
    kept = credited(PopulationZScore(case.param("adv_eps")), batch.select(used))
    clip = case.param("eps_clip")
    objective = Objective(
        ratio=hinted_ratio,
        surrogate=ClippedSurrogate(clip, clip),
        aggregation=sequence_mean_token_mean,
    )
    outputs = loss_and_grad(objective, kept, logp[used])
    advantages = torch.zeros_like(batch.rewards).masked_scatter(
        used, per_rollout(kept["advantages"], kept)
    )
    grad = torch.zeros_like(logp)
    grad[used] = outputs["grad_logp"]
    return {**outputs, "use_mask": used.int(), "advantages": advantages, "grad_logp": grad}


@maps("offline-token-entropy-loss")
def offline_token_entropy_loss(case: Case) -> Outputs:
    assert case.param("std_ddof") == 1
    clip = case.param("eps_clip")
    objective = Objective(
        surrogate=ClippedSurrogate(clip, clip),
        entropy=EntropyBonus(case.param("entropy_coeff")),
        kl=KLPenaltyK3(case.param("kl_coef"), bound=10.0),
    )
    batch = credited(
        GroupZScore(case.param("adv_eps"), lone=1.0), case.batch("logp_old", "logp_ref")
    )
    logp, entropy = case.tensor("logp"), case.tensor("entropy").requires_grad_()
    coefficient = case.param("pg_coeff")
    trained = batch.replace(advantages=coefficient * batch["advantages"])
    loss = objective(Evaluation(logp, entropy=entropy), trained).loss
    return {
        **loss_and_grad(objective, trained, logp, entropy=entropy.detach()),
        "grad_entropy": torch.autograd.grad(loss, entropy)[0],
        "advantages": per_rollout(batch["advantages"], batch),
    }


@maps("rec-opmd-asymre")
def rec_opmd_asymre(case: Case) -> Outputs:
    if "variants" not in case.params:
        return _opmd(case)
    z_score: Any = PopulationZScore() if case.param("std_normalize") else group_mean_baseline
    batch = credited(z_score, case.batch("logp_old"))
    logp = case.tensor("logp")
    variants = {n: _rec(v, batch, logp) for n, v in case.param("variants").items()}
    return {"advantages": per_rollout(batch["advantages"], batch), "variants": variants}


def _rec(numbers: Mapping[str, Any], batch: Batch, logp: Tensor) -> Outputs:
    """One member of the REC / RED family."""
    low, high, clip = numbers["eps_low"], numbers["eps_high"], numbers["clip_mode"]
    masks: dict[str, tuple[TrustRegion, ...]] = {
        "none": (),
        "one-side": (ClipMask(low, high),),
        "gspo-one-side": (ClipMask(low, high),),
        "two-side": (TwoSideMask(low, high),),
        "ring": (RingMask(low, high, numbers["eps_low_prime"], numbers["eps_high_prime"]),),
    }
    weight, coefficient = numbers["weight"], numbers["reg_coef"]
    regularisers: dict[str, tuple[TrustRegion, ...]] = {
        "none": (),
        "k2": (StepDivergence(K2(), 2 * coefficient),),
        "forward-kl": (StepDivergence(ForwardKL(), coefficient),),
    }
    by_row = clip == "gspo-one-side"
    unweighted = weight in ("none", "advantage")
    objective = Objective(
        ratio=sequence_ratio if by_row else token_ratio,
        surrogate=PolicyGradient() if unweighted else ClippedImportanceWeight(clip_high=math.inf),
        trust_region=masks[clip] + regularisers[numbers["regularizer"]],
        aggregation=sequence_mean_token_mean if by_row else token_mean,
    )
    if weight == "advantage":
        tilted = ExponentialWeight(numbers["temp"])(batch["advantages"], batch)
        batch = batch.replace(advantages=tilted)
    outputs = loss_and_grad(objective, batch, logp)
    if numbers["regularizer"] == "forward-kl":  # the code leaves the constant old term out
        constant = coefficient * (token_mean(batch) * batch["logp_old"]).sum()
        return {**outputs, "loss": outputs["loss"] - constant}
    return outputs


def _opmd(case: Case) -> Outputs:
    """OPMD with both baselines, and AsymRE."""
    mean, soft = case.param("opmd-mean"), case.param("opmd-logavgexp")
    assert (mean["baseline"], soft["baseline"]) == ("mean", "logavgexp")
    shift = case.param("asymre")["baseline_shift"]
    forms: dict[str, tuple[Any, Any]] = {
        "opmd-mean": (SoftMeanBaseline(math.inf, lone=1.0), Damped(mean["tau"])),
        "opmd-logavgexp": (SoftMeanBaseline(soft["tau"], lone=1.0), Damped(soft["tau"])),
        "asymre": (ShiftedMeanBaseline(shift, lone=1.0), None),
    }
    outputs = {}
    for name, (estimator, damped) in forms.items():
        batch = credited(estimator, anchored(case))
        advantages = batch["advantages"]
        trained = damped(advantages, batch) if damped else advantages
        objective = Objective(surrogate=PolicyGradient())
        found = loss_and_grad(objective, batch.replace(advantages=trained), case.tensor("logp"))
        outputs[name] = {**found, "advantages": per_rollout(advantages, batch)}
    return outputs
