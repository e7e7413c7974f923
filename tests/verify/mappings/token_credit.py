"""Vectors of credit for tokens and segments."""

from __future__ import annotations

import torch
from torch import Tensor

from polyopt.advantages.baselines import GroupZScore, group_mean_baseline
from polyopt.advantages.effective_rank import MEASURES, RankVelocity, rank_measures
from polyopt.advantages.entropy_weights import (
    BoundedAdvantage,
    ConfidenceScale,
    EntropyGate,
    EntropyWeightedRollouts,
    EntropyWeightedTokens,
    rollout_entropy,
)
from polyopt.advantages.planning import PlanningTokens, in_grams
from polyopt.advantages.prefix_trees import BranchCredit, PrefixTree, next_token_gain
from polyopt.advantages.segments import ThoughtCredit
from polyopt.advantages.turns import runs
from polyopt.batch import Batch
from polyopt.objectives.aggregation import sequence_mean_token_mean, token_mean
from polyopt.objectives.objective import Objective
from polyopt.objectives.penalties import KLPenaltyK3
from polyopt.objectives.prefixes import PerDistinctPrefix, probability_gain
from polyopt.objectives.protocol import Evaluation
from polyopt.objectives.surrogates import ClippedSurrogate
from polyopt.rollouts.forks import fork_positions, forked_rollouts
from polyopt.selection.conflicts import ConflictRuns, ConflictWeights
from polyopt.selection.information import InformationWeights, divergence_from_group
from polyopt.selection.prefix_tokens import first_of_each_branch, share_prefixes
from polyopt.selection.uncertain_tokens import RandomTokens
from tests.verify.harness import Case, Outputs, loss_and_grad, maps
from tests.verify.mappings.systems import credit, per_rollout


def one_token(like: Tensor) -> Tensor:
    """A mask with one sampled token in each row."""
    return torch.ones(len(like), 1, dtype=torch.float64)


def nothing(batch: Batch) -> Tensor:
    """No credit yet."""
    return torch.zeros(batch.mask.shape, dtype=batch.rewards.dtype)


@maps("tempo")
def tempo(case: Case) -> Outputs:
    batch, eps = case.batch("tokens", lengths=case.ids("lengths")), case.param("epsilon")
    advantages = BranchCredit(eps)(credit(GroupZScore(eps), batch), batch)
    return {"prefix_values": PrefixTree.of(batch).mean(batch.rewards), "advantages": advantages}


@maps("t-spmo")
def t_spmo(case: Case) -> Outputs:
    if case.has("uniform"):
        return _token_subset(case)
    batch = case.batch("tokens", lengths=case.ids("lengths"))
    advantages = credit(next_token_gain, batch)
    chosen = first_of_each_branch(batch.replace(advantages=advantages))
    objective = Objective(surrogate=probability_gain, aggregation=token_mean)
    logp = case.tensor("logp")
    outputs = loss_and_grad(objective, chosen.replace(logp_old=logp), logp)
    return {**outputs, "advantages": advantages, "pairs": chosen.loss_mask.nonzero()}


def _token_subset(case: Case) -> Outputs:
    uniform, lengths = case.tensor("uniform"), case.ids("lengths")
    inside = torch.arange(uniform.shape[1]) < lengths[:, None]
    part = RandomTokens(case.param("cutoff"), case.param("keep_probability"))
    return {"train_mask": part(Batch.of(mask=inside, draws=uniform)).loss_mask.int()}


@maps("lambda-grpo-prm")
def lambda_grpo_prm(case: Case) -> Outputs:
    batch = case.batch("tokens", lengths=case.ids("lengths"))
    shared = share_prefixes(batch)
    outputs = {
        "lambda_size": PrefixTree.of(batch).count()[:, 1:],
        "loss_scale": shared["prefix_share"],
    }
    if not case.has("logp"):
        return outputs
    advantages = credit(GroupZScore(case.param("epsilon")), batch)
    base = {"grpo": sequence_mean_token_mean, "dapo": token_mean}[case.param("loss_type")]
    clip = case.param("epsilon_clip")
    objective = Objective(
        surrogate=ClippedSurrogate(clip, clip),
        kl=KLPenaltyK3(case.param("beta")),
        aggregation=PerDistinctPrefix(base),
    )
    old = {name: case.tensor(name) for name in ("logp_old", "logp_ref")}
    logp = case.tensor("logp")
    losses = loss_and_grad(objective, shared.replace(advantages=advantages, **old), logp)
    return {**outputs, **losses, "advantages": per_rollout(advantages, batch)}


@maps("gtpo-entropy")
def gtpo_entropy(case: Case) -> Outputs:
    correct, eps = case.tensor("correct"), case.param("epsilon")
    batch = case.batch("entropy", rewards=correct)
    tokens = EntropyWeightedTokens(case.param("alpha1"), case.param("alpha2"), eps)
    rollouts = EntropyWeightedRollouts(case.param("beta1"), case.param("beta2"), eps)
    return {
        "token_rewards": tokens.token_rewards(batch),
        "token_advantages": credit(tokens, batch),
        "sequence_rewards": rollouts.rollout_rewards(batch),
        "sequence_advantages": per_rollout(credit(rollouts, batch), batch),
    }


@maps("gtpo-trajectory")
def gtpo_trajectory(case: Case) -> Outputs:
    batch = case.batch("tokens", "entropy")
    gate = EntropyGate(case.param("entropy_scale"), case.param("entropy_threshold"))
    advantages = gate(credit(group_mean_baseline, batch), batch)
    runs = ConflictRuns.of(batch)
    weighted = ConflictWeights(case.param("positive_weight"))(batch)
    coefficients = sequence_mean_token_mean(batch)
    if case.param("divide_by_conflicts"):
        # the authors' code also divides by the longer run, its number of conflicting tokens
        coefficients = coefficients / runs.longest.clamp(min=1)[:, None]
    if case.param("sum_over_group"):
        coefficients = coefficients * len(batch)
    logp = case.tensor("logp")
    prepared = weighted.replace(advantages=advantages, coefficients=coefficients, logp_old=logp)
    outputs = loss_and_grad(Objective(surrogate=ClippedSurrogate()), prepared, logp)
    return {
        **outputs,
        "token_weights": weighted["weights"] * batch.mask,
        "kept": gate.kept(batch),
        "advantages": per_rollout(advantages, batch),
    }


@maps("ear-etmr")
def ear_etmr(case: Case) -> Outputs:
    if case.params.get("fork_points") is not None:
        entropy, points = case.tensor("entropy")[None], case.param("fork_points")
        forks = fork_positions(entropy, torch.ones_like(entropy, dtype=torch.bool), points)
        rollouts = forked_rollouts(case.param("trees"), points, case.param("branches"))
        return {"fork_positions": forks[0].nonzero().flatten(), "rollouts": rollouts}
    batch, part = case.batch("entropy"), ConfidenceScale()
    advantages = credit(GroupZScore(case.param("epsilon")), batch)
    clipped = BoundedAdvantage(case.param("beta_clip"))(advantages, batch)
    return {
        "response_entropy": rollout_entropy(batch),
        "scale": part.scale(batch),
        "advantages": per_rollout(advantages, batch),
        "reshaped_advantages": per_rollout(part(advantages, batch), batch),
        "clipped_advantages": per_rollout(clipped, batch),
    }


@maps("tp-grpo")
def tp_grpo(case: Case) -> Outputs:
    part, correct = ThoughtCredit(case.param("alpha")), case.tensor("correct")
    batch = case.batch("step_label", rewards=2 * correct - 1)
    outcome = credit(GroupZScore(case.param("epsilon")), batch)
    return {
        "thoughts": runs(batch["step_label"].long()).masked_fill(~batch.mask, -1),
        "outcome_advantage": per_rollout(outcome, batch),
        "process_reward": part.process_reward(batch),
        "advantages": part(outcome, batch),
    }


@maps("hicra")
def hicra(case: Case) -> Outputs:
    grams = tuple(tuple(gram) for gram in case.raw("strategic_grams"))
    batch = case.batch("tokens", "advantages")
    shaped = PlanningTokens(case.param("alpha"), grams)(batch["advantages"], batch)
    return {
        "planning_mask": in_grams(batch["tokens"], batch.mask, grams).int(),
        "token_advantages": shaped * batch.mask,
    }


@maps("verl-effective-rank")
def verl_effective_rank(case: Case) -> Outputs:
    if case.has("hidden"):
        return rank_measures(case.tensor("hidden"), case.param("stride"))
    advantages = case.tensor("advantages")[:, None]
    columns = {name: case.tensor(name) for name in MEASURES}
    batch = Batch.of(mask=one_token(advantages), **columns)
    part = RankVelocity(*(case.param(n) for n in ("kappa", "gain", "weight", "relative_clip")))
    part.load_state_dict({"means": {name: case.raw(f"ema_{name}") for name in MEASURES}})
    return {
        "exploration_weight": part.exploration(batch),
        "aux_reward": part.bonus(batch),
        "shaped_advantages": part(advantages, batch)[:, 0],
    }


@maps("tw-grpo")
def tw_grpo(case: Case) -> Outputs:
    logp_vocab = case.tensor("logp_vocab").requires_grad_()
    batch = case.batch()
    divergence = divergence_from_group(logp_vocab, batch.mask, batch.group_index)
    if case.param("detach_weights", 1):
        divergence = divergence.detach()
    part = InformationWeights(case.param("alpha"))
    weighted = part(batch.replace(vocabulary_divergence=divergence))
    if not case.has("tokens"):
        return {"token_weights": weighted["weights"]}
    assert case.param("beta") == 0  # the file has no reference to penalise the distance to
    objective = Objective(
        surrogate=ClippedSurrogate(case.param("clip_low"), case.param("clip_high")),
        aggregation=token_mean,
    )
    credited = weighted.replace(**case.batch("logp_old", "advantages").columns)
    logp = logp_vocab.gather(2, case.ids("tokens")[:, :, None])[:, :, 0]
    loss = objective(Evaluation(logp), credited).loss
    (grad,) = torch.autograd.grad(loss, logp_vocab)
    return {"token_weights": weighted["weights"], "loss": loss, "grad_logp_vocab": grad}
