"""Vectors of credit in agents: steps, turns, tool calls, teams and programs."""

from __future__ import annotations

import torch
from torch import Tensor

from polyopt.advantages.baselines import GroupZScore
from polyopt.advantages.module_calls import ModuleCalls, ModuleCallZScore
from polyopt.advantages.scopes import (
    AgentTurnZScore,
    OwnVariant,
    scope_index,
)
from polyopt.advantages.steps import AnchorStates, EpisodeByStep, SharedSteps, Steps
from polyopt.advantages.tool_calls import EarlyCall
from polyopt.advantages.turns import TurnCredit
from polyopt.groups import group_count, subgroups
from polyopt.rewards.team import TeamReward
from polyopt.rollouts.forks import best_candidate
from polyopt.selection.module_calls import aligned_calls, filled_calls
from tests.verify.harness import Case, Outputs, maps
from tests.verify.mappings.systems import credit, per_rollout
from tests.verify.mappings.token_credit import nothing, one_token


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


@maps("gigpo")
def gigpo(case: Case) -> Outputs:
    traj = case.ids("traj")
    batch = case.batch(
        mask=one_token(traj),
        rollout=traj,
        step=torch.arange(len(traj))[:, None],
        state=case.ids("anchor")[:, None],
        token_rewards=case.tensor("step_rewards")[:, None],
    )
    power = {"mean_norm": 0.0, "mean_std_norm": 1.0}[case.param("mode")]
    eps = case.param("epsilon")
    episode = credit(EpisodeByStep(power, eps, lone=1.0), batch)
    part = AnchorStates(case.param("step_advantage_w"), case.param("gamma"), power, eps)
    steps = Steps.of(batch)
    return {
        "returns": steps.spread(part.returns(batch, steps))[:, 0],
        "episode_advantages": episode[:, 0],
        "step_advantages": part.step_credit(batch)[:, 0],
        "advantages": part(episode, batch)[:, 0],
    }


@maps("salt")
def salt(case: Case) -> Outputs:
    states, actions = case.ids("states"), case.ids("actions")
    place = torch.arange(actions.shape[1])
    batch = case.batch(
        mask=place < case.ids("lengths")[:, None],
        step=place.expand(actions.shape),
        state=states[:, :-1],
        action=actions,
        next_state=states[:, 1:],
    )
    part, steps = SharedSteps(case.param("history")), Steps.of(batch)
    rollouts = case.tensor("advantages")[:, None] * batch.mask
    edges = part.edges(batch, steps)
    shared = group_count(edges, torch.ones(len(edges)))
    return {
        "step_advantages": part(rollouts, batch),
        "merged_count": steps.spread(shared),
    }


@maps("aspo-tool")
def aspo_tool(case: Case) -> Outputs:
    advantages, part = case.tensor("advantages")[:, None], EarlyCall(*_slope(case))
    batch = case.batch(
        mask=one_token(advantages),
        accuracy=case.tensor("correct"),
        first_call=case.ids("first_code"),
        lengths=case.ids("lengths"),
    )
    return {
        "bias": part.bias(advantages, batch)[:, 0],
        "shaped_advantages": part(advantages, batch)[:, 0],
    }


def _slope(case: Case) -> tuple[float, float]:
    return case.param("delta"), case.param("k")
