"""Vectors of credit by confidence, entropy and agreement, and of credit for sets of rollouts."""

from __future__ import annotations

from typing import Any

import torch

from polyopt.advantages.baselines import GroupZScore, group_mean_baseline
from polyopt.advantages.best_of_k import (
    BestOfKLeaveOneOut,
    BestOfKMarginal,
    BestOfKZScore,
    best_of_k,
    max_at_k,
)
from polyopt.advantages.consistency import LocalAndGlobal
from polyopt.advantages.halves import EntropyHalves, LengthHalves
from polyopt.advantages.ranked_lists import RankZScore, rank_advantages
from polyopt.advantages.risk import LEVELS, MixedValueAtRisk, Papers, bundles_of, tracked_step
from polyopt.advantages.sets import member_mean, set_advantages, set_scores
from polyopt.advantages.thoughts import ThoughtAndAnswer
from polyopt.advantages.uncertainty import (
    BatchEntropyScale,
    EntropyScale,
    LikelihoodSemanticEntropyDiscount,
    SemanticEntropyDiscount,
    exponential_discount,
    linear_discount,
)
from polyopt.advantages.zero_variance import CentredFailures, EntropyForSilentGroups
from polyopt.batch import Batch
from polyopt.objectives.aggregation import sequence_mean_token_mean, token_mean
from polyopt.objectives.best_of_k import exact, first_order
from polyopt.objectives.blended_clip import BlendedClip, local_weight
from polyopt.objectives.item_ratio import ItemRatio
from polyopt.objectives.objective import Objective
from polyopt.objectives.surrogates import ClippedSurrogate
from polyopt.rewards.confidence import ConfidenceCalibration, UnlikelinessReward, confidence
from polyopt.rewards.dense import last_token
from polyopt.rewards.ranked_lists import discounted_rank_rewards, own_rank_rewards
from polyopt.rollout_table import RolloutTable
from tests.verify.harness import Case, Outputs, loss_and_grad, maps
from tests.verify.mappings.rollout_credit import shaped
from tests.verify.mappings.systems import credit, per_rollout, rollout_batch


@maps("lens")
def lens(case: Case) -> Outputs:
    part, batch = ConfidenceCalibration(), case.batch("logp_old")
    estimator = CentredFailures(case.param("negative_weight"), case.param("epsilon"))
    table, calibrated = RolloutTable.of(batch), part(batch)
    return {
        "confidence": confidence(batch, table),
        "difficulty": part.difficulty(batch, table),
        "calibrated_rewards": calibrated.rewards,
        "advantages": per_rollout(credit(estimator, calibrated), batch),
    }


@maps("rl-zvp")
def rl_zvp(case: Case) -> Outputs:
    batch = case.batch("entropy")
    base = credit(GroupZScore(case.param("epsilon")), batch)
    return {"advantages": shaped(EntropyForSilentGroups(case.param("alpha")), base, batch)}


@maps("edge-grpo")
def edge_grpo(case: Case) -> Outputs:
    make = {"batch": BatchEntropyScale, "group": EntropyScale}[case.param("scope")]
    batch = case.batch("entropy")
    base = credit(GroupZScore(case.param("epsilon")), batch)
    return {
        "sequence_entropy": RolloutTable.of(batch).token_mean(batch["entropy"]),
        "group_advantages": per_rollout(base, batch),
        "advantages": per_rollout(shaped(make(least=0.0), base, batch), batch),
    }


@maps("seed-grpo")
def seed_grpo(case: Case) -> Outputs:
    discount = {"linear": linear_discount, "exp": exponential_discount}[case.param("f")]
    batch = rollout_batch(case).replace(answer_class=case.ids("cluster"))
    make = SemanticEntropyDiscount
    if case.param("probability") == "likelihood":
        make = LikelihoodSemanticEntropyDiscount
        batch = batch.replace(logp_old=case.tensor("seq_logp")[:, None])
    part = make(case.param("alpha"), discount)
    base = credit(group_mean_baseline, batch)
    return {
        "semantic_entropy": part.entropy(batch),
        "advantages": per_rollout(shaped(part, base, batch), batch),
    }


@maps("unlikeliness-reward")
def unlikeliness_reward(case: Case) -> Outputs:
    part, batch = UnlikelinessReward(case.param("beta_rank")), case.batch("logp_old")
    after = part(batch)
    advantages = credit(GroupZScore(case.param("epsilon"), lone=1.0), after)
    return {
        "likelihood_rank": part.ranks(batch, RolloutTable.of(batch)),
        "rewards_shaped": after.rewards,
        "advantages": per_rollout(advantages, batch),
    }


@maps("canon")
def canon(case: Case) -> Outputs:
    numbers = (case.param("mu"), case.param("alpha"), case.param("beta"), 1.0)
    if case.param("metric") == "length":
        lengths = case.tensor("lengths")
        mask = torch.arange(int(lengths.max()))[None] < lengths[:, None]
        part, batch = LengthHalves(*numbers), case.batch(mask=mask)
    else:
        part, batch = EntropyHalves(*numbers), case.batch("entropy")
    advantages = per_rollout(credit(part, batch), batch)
    return {
        "metric_value": part.metric(batch, RolloutTable.of(batch)),
        # The code folds the constant length of Dr. GRPO's loss into the advantage.
        "advantages": advantages / case.param("max_length"),
    }


@maps("copo")
def copo(case: Case) -> Outputs:
    assert case.param("use_entropy_coefficient") == 1
    part = LocalAndGlobal(case.param("epsilon"), case.param("b"), case.param("k"))
    batch = (case.batch if case.has("mask") else lambda: rollout_batch(case))()
    batch = batch.replace(answer_class=case.ids("answers"))
    local = credit(part, batch)
    batch = batch.replace(advantages=local, **part.provide(batch))
    outputs = {
        "local_advantages": per_rollout(local, batch),
        "answer_entropy_bits": part.answer_entropy(batch),
        "global_rewards": part.global_rewards(batch),
        "global_advantages": per_rollout(batch["global_advantages"], batch),
        "local_weight": per_rollout(local_weight(batch), batch),
    }
    if not case.has("logp"):
        return outputs
    surrogate = BlendedClip(
        case.param("clip_low"), case.param("clip_high"), case.param("clip_ratio_c")
    )
    objective = Objective(surrogate=surrogate, aggregation=token_mean)
    batch = batch.replace(logp_old=case.tensor("logp_old"))
    return {**outputs, **loss_and_grad(objective, batch, case.tensor("logp"))}


@maps("riskpo")
def riskpo(case: Case) -> Outputs:
    if case.has("levels"):
        levels, scores = case.tensor("levels"), case.tensor("bundle_scores")
        return {"q_next": tracked_step(case.tensor("q"), levels, scores, case.param("lr_q"))}
    assert case.param("credit") == "std"
    assert case.param("norm_by_std")
    low, high = case.param("quantile_down"), case.param("quantile_up")
    part = MixedValueAtRisk(
        low,
        high,
        tail=case.param("w_mix") if case.param("mixing") else 0.0,
        eps=case.param("epsilon"),
        flat_bundle=-1.0,  # the code divides by eps where the papers of a bundle are equal
    )
    case.param("w_mix")
    tracked = (case.param("q_track_down", None), case.param("q_track_up", None))
    if tracked[0] is not None:
        nearest = [0 if abs(level - low) < abs(level - high) else 1 for level in LEVELS]
        part.quantiles = [tracked[side] for side in nearest]
    batch = rollout_batch(case).replace(bundle=case.ids("bundle"))
    table = RolloutTable.of(batch)
    papers = Papers.of(table, bundles_of(batch, table, part.size))
    advantages = per_rollout(credit(part, batch), batch)
    return {"advantages": advantages, "bundle_scores": papers.score}


@maps("max-at-k")
def max_at_k_mapping(case: Case) -> Outputs:
    k, batch = case.param("k"), rollout_batch(case)
    rewards, index = batch.rewards, batch.group_index
    outputs = {
        "max_at_k": max_at_k(rewards, index, k)[0],
        "transformed_rewards": best_of_k(rewards, index, k),
    }
    if not case.has("ratio"):
        return outputs
    ratio = case.tensor("ratio")
    whole = exact(rewards, ratio, index, k)
    z_score = BestOfKZScore(k, case.param("epsilon"))
    return {
        **outputs,
        "advantages_loo": per_rollout(credit(BestOfKLeaveOneOut(k), batch), batch),
        "advantages_loo_minus_one": per_rollout(credit(BestOfKMarginal(k), batch), batch),
        "advantages_zscore": per_rollout(credit(z_score, batch), batch),
        "off_policy_first_order": first_order(rewards, ratio, index, k),
        "off_policy_exact": whole,
        "off_policy_max_at_k": whole.sum() / k,
    }


@maps("polychromic")
def polychromic(case: Case) -> Outputs:
    sets, returns = case.ids("sets"), case.tensor("returns")
    member = sets.flatten()
    index = torch.arange(len(sets)).repeat_interleave(sets.shape[1])
    scores = set_scores(returns[member], case.ids("signature")[member], index)
    advantages = set_advantages(scores, index, torch.zeros_like(index))
    first = torch.arange(len(sets)) * sets.shape[1]
    return {
        "set_scores": scores[first],
        "set_advantages": advantages[first],
        "sets_per_trajectory": torch.bincount(member, minlength=len(returns)),
        "advantages": member_mean(advantages, member, len(returns)),
    }


@maps("rank-grpo")
def rank_grpo(case: Case) -> Outputs:
    rewarded = {"log_decay": discounted_rank_rewards, "exp_inf": own_rank_rewards}
    hits, group = case.tensor("hits"), case.ids("group")
    batch = rewarded[case.param("rank_reward")](Batch.of(hits=hits, group=group))
    rewards = batch["rank_rewards"]
    outputs: dict[str, Any] = {
        "rank_rewards": rewards,
        "rank_advantages": rank_advantages(rewards, batch.group_index, case.param("epsilon")),
    }
    if not case.has("segments"):
        return outputs
    assert case.param("rec_num") == hits.shape[1]
    items = case.ids("segments")
    batch = case.batch("logp_old", hits=hits, rank_rewards=rewards, items=items)
    stops = case.tensor("eos").bool()
    batch = batch.replace(truncated=~stops.any(1))
    assert (stops == last_token(batch.mask) & stops).all()
    estimator = RankZScore(case.param("epsilon"), case.param("extra_token_penalty"))
    advantages = credit(estimator, batch)
    ratio = ItemRatio(hits.shape[1])
    aggregation: Any = {"bnpo": token_mean, "grpo": sequence_mean_token_mean}
    surrogate = ClippedSurrogate(case.param("epsilon_low"), case.param("epsilon_high"))
    objective = Objective(ratio, surrogate, aggregation=aggregation[case.param("loss_type")])
    loss = loss_and_grad(objective, batch.replace(advantages=advantages), case.tensor("logp"))
    item_ratio = ratio(case.tensor("logp"), batch).exp() * batch.mask
    return {**outputs, **loss, "token_advantages": advantages, "item_ratio": item_ratio}


@maps("grpo-ma")
def grpo_ma(case: Case) -> Outputs:
    rewards = case.tensor("answer_rewards")
    thoughts, answers = rewards.shape
    batch = Batch.of(
        mask=torch.ones(thoughts * answers, 2),
        rewards=rewards.flatten(),
        thought=torch.arange(thoughts).repeat_interleave(answers),
        thought_tokens=torch.tensor([[1, 0]]).expand(thoughts * answers, 2),
    )
    part = ThoughtAndAnswer(case.param("epsilon"))
    advantages = credit(part, batch).view(thoughts, answers, 2)
    return {
        "thought_values": part.thought_values(batch).view(thoughts, answers)[:, 0],
        "thought_advantages": advantages[:, 0, 0],
        "answer_advantages": advantages[:, :, 1],
    }
