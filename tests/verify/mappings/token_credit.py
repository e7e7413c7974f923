"""Vectors of credit for tokens, segments, turns and trees."""

from __future__ import annotations

import torch
from torch import Tensor

from polyopt.advantages.baselines import GroupZScore
from polyopt.advantages.module_calls import ModuleCalls, ModuleCallZScore
from polyopt.advantages.prefix_trees import BranchCredit, PrefixTree, next_token_gain
from polyopt.advantages.scopes import (
    AgentTurnZScore,
    IntraTree,
    OwnVariant,
    RescoreByTree,
    TreeZScore,
    scope_index,
)
from polyopt.advantages.turns import TurnCredit
from polyopt.batch import Batch
from polyopt.groups import subgroups
from polyopt.objectives.aggregation import sequence_mean_token_mean, token_mean
from polyopt.objectives.objective import Objective
from polyopt.objectives.penalties import KLPenaltyK3
from polyopt.objectives.prefixes import PerDistinctPrefix, probability_gain
from polyopt.objectives.surrogates import ClippedSurrogate
from polyopt.rewards.team import TeamReward
from polyopt.rollouts.forks import best_candidate
from polyopt.selection.module_calls import aligned_calls, filled_calls
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


@maps("tree-grpo")
def tree_grpo(case: Case) -> Outputs:
    eps, tree = case.param("epsilon"), case.ids("tree")
    batch = case.batch(tree=tree, mask=one_token(tree))
    inter = credit(GroupZScore(eps, lone=1.0), batch)
    return {
        "inter_tree": per_rollout(inter, batch),
        "intra_tree": per_rollout(credit(TreeZScore(eps, lone=1.0), batch), batch),
        "advantages": per_rollout(IntraTree(eps, lone=1.0)(inter, batch), batch),
        "advantages_2norm": per_rollout(RescoreByTree(eps, lone=1.0)(inter, batch), batch),
    }


@maps("share-grpo")
def share_grpo(case: Case) -> Outputs:
    variant, own = case.ids("variant"), case.ids("own_variant")
    batch = case.batch(variant=variant, own_variant=own, mask=one_token(own))
    eps = case.param("epsilon")
    question = credit(GroupZScore(eps), batch)
    within = OwnVariant(eps)
    return {
        "question_level": per_rollout(question, batch),
        "variant_level": per_rollout(within(nothing(batch), batch), batch),
        "advantages": per_rollout(within(question, batch), batch),
    }


@maps("at-grpo")
def at_grpo(case: Case) -> Outputs:
    if case.has("candidate_rewards"):
        assert case.param("greedy")
        return {"continued_candidate": best_candidate(case.tensor("candidate_rewards"))}
    turn, agent = case.ids("turn"), case.ids("agent")
    batch = case.batch(
        mask=one_token(turn),
        group=case.ids("env") // case.param("samples_per_env"),
        rewards=case.tensor("local_rewards"),
        team_reward=case.tensor("team_rewards"),
        turn=turn,
        agent=agent,
    )
    mixed = TeamReward(case.param("alpha"))(batch)
    advantages = credit(AgentTurnZScore(case.param("epsilon"), lone=1.0), mixed)
    return {
        "rewards": mixed.rewards,
        "group": in_order_of_appearance(scope_index(mixed, "turn", "agent")),
        "advantages": per_rollout(advantages, mixed),
    }


def in_order_of_appearance(index: Tensor) -> Tensor:
    """The same classes, numbered as they first appear."""
    names: dict[int, int] = {}
    return torch.tensor([names.setdefault(i, len(names)) for i in index.tolist()])


@maps("mmgrpo")
def mmgrpo(case: Case) -> Outputs:
    prompt, module, rollout = case.ids("prompt"), case.ids("module"), case.ids("rollout")
    scores = case.tensor("rollout_rewards")
    rows = torch.arange(len(prompt))
    batch = case.batch(
        mask=one_token(prompt),
        group=prompt,
        rollout=subgroups(rollout, prompt),
        rewards=scores[prompt, rollout] if scores.dim() == 2 else scores[rollout],
        module=module,
        call=rows,
        row=rows,
    )
    skipped = ModuleCalls.of(batch).fewest == 0
    pairs = torch.stack([prompt, module], dim=1)[skipped]
    mode = case.param("mode")
    assert mode in ("truncate", "fill")
    used = batch.select(aligned_calls(batch)) if mode == "truncate" else filled_calls(batch)
    advantages = per_rollout(credit(ModuleCallZScore(case.param("epsilon")), used), used)
    calls = ModuleCalls.of(used)
    groups = subgroups(calls.place, calls.unit)
    members = [
        sorted((groups == g).nonzero().flatten().tolist(), key=lambda i: int(used.rollout[i]))
        for g in groups.unique().tolist()
    ]
    return {
        "groups": [[int(used["row"][i]) for i in group] for group in members],
        "skipped_prompt_module": pairs.unique(dim=0) if len(pairs) else [],
        "advantages": [[advantages[i].item() for i in group] for group in members],
    }


@maps("turn-level-credit")
def turn_level_credit(case: Case) -> Outputs:
    part = TurnCredit(case.param("turn_advantage_coef"), case.param("epsilon"))
    batch = case.batch(
        rewards=case.tensor("outcome_rewards"),
        turn_reward=case.tensor("turn_rewards"),
        result_run=case.ids("result_segment"),
    )
    turn, outcome, both = part.scores(batch)
    # the authors' code writes the outcome's part on tokens outside the mask too
    elsewhere = torch.where(batch["result_run"] > 0, outcome, both)[:, None]
    advantages = torch.where(batch.mask, credit(part, batch), elsewhere)
    return {
        "turn_advantages": turn,
        "outcome_advantages": outcome,
        "combined_advantages": both,
        "advantages": advantages,
    }


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
    return {"train_mask": part(Batch.of(mask=inside, uniform=uniform)).loss_mask.int()}


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
