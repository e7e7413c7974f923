"""Vectors of credit for tokens, segments, turns and trees."""

from __future__ import annotations

import math

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
from polyopt.advantages.module_calls import ModuleCalls, ModuleCallZScore
from polyopt.advantages.order_projection import OrderConstraints
from polyopt.advantages.planning import PlanningTokens, in_grams
from polyopt.advantages.prefix_trees import BranchCredit, PrefixTree, next_token_gain
from polyopt.advantages.scopes import (
    AgentTurnZScore,
    IntraTree,
    OwnVariant,
    RescoreByTree,
    TreeZScore,
    scope_index,
)
from polyopt.advantages.segment_trees import (
    SegmentTree,
    SiblingBernoulliScore,
    SiblingZScore,
    sibling_baseline,
)
from polyopt.advantages.segments import ChoicesOnly, ThoughtCredit, segment_gain
from polyopt.advantages.staged_prefixes import StagedExpectation, StagedOptimism, StagedPessimism
from polyopt.advantages.steps import AnchorStates, EpisodeByStep, SharedSteps, Steps
from polyopt.advantages.tool_calls import EarlyCall
from polyopt.advantages.turns import TurnCredit, runs
from polyopt.batch import Batch
from polyopt.groups import group_count, group_deviation, one_group, subgroups
from polyopt.objectives.aggregation import sequence_mean_token_mean, token_mean
from polyopt.objectives.objective import Objective
from polyopt.objectives.penalties import KLPenaltyK3
from polyopt.objectives.prefixes import PerDistinctPrefix, probability_gain
from polyopt.objectives.protocol import Evaluation
from polyopt.objectives.surrogates import ClippedSurrogate
from polyopt.rewards.team import TeamReward
from polyopt.rollouts.cutpoints import cutpoints
from polyopt.rollouts.forks import best_candidate, fork_positions, forked_rollouts
from polyopt.selection.conflicts import ConflictRuns, ConflictWeights
from polyopt.selection.information import InformationWeights, divergence_from_group
from polyopt.selection.module_calls import aligned_calls, filled_calls
from polyopt.selection.prefix_tokens import first_of_each_branch, share_prefixes
from polyopt.selection.uncertain_tokens import ProbabilityMask, RandomTokens
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


@maps("spo-segment")
def spo_segment(case: Case) -> Outputs:
    if case.has("parent"):
        return _segment_tree(case)
    if case.has("logp"):
        return _probability_mask(case)
    logp = [math.log(p) for p in case.raw("response_prob")]
    rho, values = case.param("prob_threshold"), case.tensor("prefix_values")[: len(logp)]
    places = cutpoints(logp, case.param("cutpoint_interval"), math.log(rho))
    cut = torch.zeros(1, len(logp))
    cut[0, places] = 1
    batch = Batch.of(
        mask=torch.ones(1, len(logp)),
        rewards=case.tensor("score")[None],
        logp_sampler=torch.tensor(logp)[None],
        cut=cut,
        prefix_values=values[None],
    )
    return {
        "cutpoints": [place - 1 for place in places],  # the file counts the token before the cut
        "cutpoint_values": values[places],
        "advantages": ChoicesOnly(rho)(credit(segment_gain, batch), batch)[0],
    }


def tree_batch(case: Case) -> tuple[Batch, Tensor]:
    """A row for each leaf with a token for each node on its way; one token of each node."""
    parent, rewards = case.raw("parent"), case.tensor("leaf_rewards")
    leaves = [i for i in range(len(parent)) if i not in parent]
    paths = [path_to(leaf, parent) for leaf in leaves]
    width = max(map(len, paths))
    segment = torch.tensor([path + [-1] * (width - len(path)) for path in paths])
    batch = Batch.of(mask=segment >= 0, rewards=rewards[leaves], segment=segment)
    flat = segment.flatten().tolist()
    return batch, torch.tensor([flat.index(node) for node in range(len(parent))])


def path_to(node: int, parent: list[int]) -> list[int]:
    """Nodes from the root down to a node."""
    path = [node]
    while parent[path[0]] >= 0:
        path.insert(0, parent[path[0]])
    return path


def _segment_tree(case: Case) -> Outputs:
    batch, token = tree_batch(case)
    tree, scaled = SegmentTree.of(batch), credit(SiblingZScore(case.param("epsilon")), batch)
    return {
        "values": tree.spread(tree.values(batch.rewards)).flatten()[token],
        "advantages": credit(sibling_baseline, batch).flatten()[token],
        "advantages_std_scaled": scaled.flatten()[token],
    }


def _probability_mask(case: Case) -> Outputs:
    clip = case.param("cliprange")
    batch = case.batch("logp_old", "advantages")
    masked = ProbabilityMask(case.param("prob_threshold"))(batch)
    objective = Objective(surrogate=ClippedSurrogate(clip, clip), aggregation=token_mean)
    outputs = loss_and_grad(objective, masked, case.tensor("logp"))
    return {**outputs, "train_mask": masked.loss_mask}


@maps("treerpo")
def treerpo(case: Case) -> Outputs:
    (batch, token), eps = tree_batch(case), case.param("epsilon")
    tree = SegmentTree.of(batch)
    return {
        "values": tree.spread(tree.values(batch.rewards)).flatten()[token],
        "advantages_std": credit(SiblingZScore(eps), batch).flatten()[token],
        "advantages_bernoulli": credit(SiblingBernoulliScore(eps), batch).flatten()[token],
    }


@maps("tree-opo")
def tree_opo(case: Case) -> Outputs:
    rewards = case.tensor("rewards")
    if case.has("order_pairs"):
        pairs = torch.tensor(case.raw("order_pairs"), dtype=torch.long).reshape(-1, 2)
        order = OrderConstraints(pairs[:, 0], pairs[:, 1], case.param("delta"))
        index = one_group(rewards)
        return {"advantages": order.project_into_ball(group_deviation(rewards, index), index)}
    batch = Batch.of(mask=one_token(rewards), rewards=rewards, path=_paths(case), accuracy=rewards)
    outputs = {}
    parts = {
        "expectation": StagedExpectation(case.param("alpha")),
        "optimistic": StagedOptimism(case.param("alpha")),
        "pessimistic": StagedPessimism(case.param("alpha")),
    }
    for name, part in parts.items():
        outputs[f"value_{name}"] = part.value(batch)
        outputs[f"advantages_{name}"] = per_rollout(credit(part, batch), batch)
    return outputs


def _paths(case: Case) -> Tensor:
    """Nodes from the root down to each completion's prefix."""
    paths = [path_to(node, case.raw("node_parent")) for node in case.raw("prefix_node")]
    width = max(map(len, paths))
    return torch.tensor([path + [-1] * (width - len(path)) for path in paths])


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
