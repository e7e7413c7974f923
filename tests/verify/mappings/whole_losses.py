"""Vectors of the losses over rollouts, pairs and groups, and of the mixed objectives."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from polyopt.advantages.baselines import (
    GroupZScore,
    LeaveOneOut,
    group_mean_baseline,
    raw_reward,
)
from polyopt.advantages.off_policy import (
    Damped,
    ExponentialWeight,
    ShiftedMeanBaseline,
    SoftMeanBaseline,
)
from polyopt.advantages.optimal_value import OptimalValueBaseline
from polyopt.advantages.own_rollouts import OwnMeanBaseline, OwnZScore
from polyopt.advantages.scales import PopulationZScore
from polyopt.advantages.soft_means import soft_mean
from polyopt.advantages.supervised import (
    MixedGroupReward,
    SuccessRateWeight,
    every_rollout,
    positive_reward,
)
from polyopt.advantages.token_groups import TokenGroupAverage
from polyopt.advantages.trajectories import Trajectories, success
from polyopt.batch import Batch
from polyopt.divergences import (
    K2,
    K3,
    Divergence,
    ForwardKL,
    ReverseKL,
    UnnormalizedForwardKL,
)
from polyopt.groups import group_max
from polyopt.objectives.aggregation import (
    ConstantLength,
    sequence_mean_token_mean,
    sequence_mean_token_sum,
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
from polyopt.objectives.demonstrations import (
    GroupAlignment,
    MixedPolicySurrogate,
    hinted_ratio,
)
from polyopt.objectives.distillation import TeacherKL
from polyopt.objectives.heterogeneous import HeterogeneousClip
from polyopt.objectives.mirror_descent import mirror_descent_loss, soft_mirror_descent_loss
from polyopt.objectives.objective import Objective
from polyopt.objectives.partition import FlowBalance, log_partition
from polyopt.objectives.penalties import EntropyBonus, KLPenaltyK3
from polyopt.objectives.plackett_luce import TrajectorySoftmax, log_weights
from polyopt.objectives.preferences import PreferencePairs
from polyopt.objectives.protocol import Evaluation, Surrogate, TrustRegion
from polyopt.objectives.ratio_masks import RingMask, TwoSideMask
from polyopt.objectives.ratios import sequence_product_ratio, sequence_ratio, token_ratio
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
    ClippedImportanceWeight,
    ClippedSurrogate,
    ImportanceWeighted,
    PolicyGradient,
)
from polyopt.objectives.trust_regions import ClipMask, StepDivergence
from polyopt.objectives.verification import VerdictLikelihood, verifier_score
from polyopt.replay.softmax import RewardSoftmaxReplay
from polyopt.rollout_table import RolloutTable
from polyopt.selection.balance import class_balance
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
    batch = case.batch(
        logp_old=logp_old,
        uniform_value=uniform_value(logits).detach(),
        uniform_value_old=uniform_value(old),
    )
    alone = ShiftedMeanBaseline(shift=0.0, lone=1.0)
    batch = credited(GroupZScore(lone=1.0) if case.param("std_normalize") else alone, batch)
    objective = Objective(surrogate=part)
    loss = objective(Evaluation(logp), batch).loss
    return {
        **loss_and_grad(objective, batch, logp.detach()),
        "grad_logits": torch.autograd.grad(loss, logits)[0],
        "advantages": per_rollout(batch["advantages"], batch),
        "logp": logp,
        "logp_old": logp_old,
        "q": part.q(logp, batch),
        "target": part.target(batch),
    }


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
