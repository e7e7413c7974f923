"""Vectors of credit in trees of rollouts."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from polyopt.advantages.baselines import GroupZScore
from polyopt.advantages.order_projection import OrderConstraints
from polyopt.advantages.scopes import (
    IntraTree,
    RescoreByTree,
    TreeZScore,
)
from polyopt.advantages.segment_trees import (
    SegmentTree,
    SiblingBernoulliScore,
    SiblingZScore,
    sibling_baseline,
)
from polyopt.advantages.segments import ChoicesOnly, segment_gain
from polyopt.advantages.staged_prefixes import StagedExpectation, StagedOptimism, StagedPessimism
from polyopt.batch import Batch
from polyopt.groups import group_deviation, one_group
from polyopt.objectives.aggregation import token_mean
from polyopt.objectives.objective import Objective
from polyopt.objectives.surrogates import ClippedSurrogate
from polyopt.rollouts.cutpoints import cutpoints
from polyopt.selection.uncertain_tokens import ProbabilityMask
from tests.verify.harness import Case, Outputs, loss_and_grad, maps
from tests.verify.mappings.systems import credit, per_rollout
from tests.verify.mappings.token_credit import one_token


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
