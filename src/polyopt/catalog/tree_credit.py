"""Credit in trees of rollouts: segments, siblings and shared prefixes of a search."""

from __future__ import annotations

from polyopt.advantages.baselines import GroupZScore
from polyopt.advantages.scopes import (
    IntraTree,
    RescoreByTree,
    TreeZScore,
)
from polyopt.advantages.segment_trees import (
    SiblingBernoulliScore,
    SiblingZScore,
    sibling_baseline,
)
from polyopt.advantages.segments import ChoicesOnly, segment_gain
from polyopt.advantages.staged_prefixes import (
    StagedExpectation,
    StagedOptimism,
    StagedPessimism,
    StagedProjection,
)
from polyopt.catalog.token_credit import READ, SECONDARY, clipped, like_grpo
from polyopt.ideas import idea
from polyopt.objectives.aggregation import token_mean
from polyopt.objectives.prefixes import PerDistinctPrefix
from polyopt.objectives.surrogates import ClippedSurrogate
from polyopt.recipe import Recipe
from polyopt.rollouts.cutpoints import CutpointSampling
from polyopt.rollouts.forks import RandomForkSampling
from polyopt.rollouts.segment_trees import SegmentTreeSampling
from polyopt.rollouts.staged_prefixes import StagedSampling
from polyopt.selection.prefix_tokens import share_prefixes
from polyopt.selection.uncertain_tokens import ProbabilityMask

SPO = {
    "title": "Segment Policy Optimization: Effective Segment-Level Credit Assignment in RL for "
    "Large Language Models",
    "paper": "arXiv 2505.23564",
    "certainty": "official code read; chain credit run, tree and loss transcribed",
}


@idea(**SPO)
def spo_segment(recipe: Recipe) -> Recipe:
    """SPO-chain: values at cutpoints from fresh continuations; only choices train."""
    return clipped(
        recipe.claim("advantages.estimator", segment_gain)
        .claim("rollouts.sampler", CutpointSampling())
        .append("advantages.shaping", ChoicesOnly())
        .append("selection.parts", ProbabilityMask())
    )


@idea(**SPO)
def spo_tree(recipe: Recipe) -> Recipe:
    """SPO-tree: a segment's value over its parent's; every segment trains once, choices only."""
    return (
        recipe.claim("advantages.estimator", sibling_baseline)
        .claim("rollouts.sampler", SegmentTreeSampling())
        .append("selection.parts", ProbabilityMask(), share_prefixes)
        .claim("objective.aggregation", PerDistinctPrefix(token_mean))
        .suggest("objective.surrogate", ClippedSurrogate(0.2, 0.2))
    )


TREERPO = {
    "title": "TreeRPO: Tree Relative Policy Optimization",
    "paper": "arXiv 2506.05183",
    "certainty": "abstract and a review of the method; normaliser reconstructed, both readings",
}


@idea(**TREERPO)
def treerpo(recipe: Recipe) -> Recipe:
    """Segments of a sampled tree compete with their siblings, by the mean reward below them."""
    return clipped(
        recipe.claim("advantages.estimator", SiblingZScore()).claim(
            "rollouts.sampler", SegmentTreeSampling()
        )
    )


@idea(**TREERPO)
def treerpo_bernoulli(recipe: Recipe) -> Recipe:
    """treerpo, scaled by the deviation that a 0/1 reward of the siblings' mean would have."""
    return clipped(
        recipe.claim("advantages.estimator", SiblingBernoulliScore()).claim(
            "rollouts.sampler", SegmentTreeSampling()
        )
    )


TREE_OPO = {
    "title": "Tree-OPO: Off-policy Monte Carlo Tree-Guided Advantage Optimization for Multistep "
    "Reasoning",
    "paper": "arXiv 2509.09284",
    "certainty": SECONDARY,
}


def staged(recipe: Recipe) -> Recipe:
    """GRPO's loss on rollouts from beginnings of each prompt's solution, as a suggestion."""
    return like_grpo(recipe).suggest("rollouts.sampler", StagedSampling())


@idea(**TREE_OPO)
def tree_opo(recipe: Recipe) -> Recipe:
    """Takes half of a prefix's mean reward off, where completions start from many prefixes."""
    return staged(recipe.claim("advantages.estimator", StagedExpectation()))


@idea(**TREE_OPO)
def tree_opo_optimistic(recipe: Recipe) -> Recipe:
    """tree-opo with the best reward reached from the prefix."""
    return staged(recipe.claim("advantages.estimator", StagedOptimism()))


@idea(**TREE_OPO)
def tree_opo_pessimistic(recipe: Recipe) -> Recipe:
    """tree-opo with the worst reward reached from the prefix."""
    return staged(recipe.claim("advantages.estimator", StagedPessimism()))


@idea(**TREE_OPO)
def tree_opo_sae(recipe: Recipe) -> Recipe:
    """tree-opo by projection: the closest centred rewards that respect the order of the tree."""
    return staged(recipe.claim("advantages.estimator", StagedProjection()))


TREE_GRPO = {
    "title": "Tree Search for LLM Agent Reinforcement Learning",
    "paper": "arXiv 2509.21240",
    "certainty": READ,
}


def in_trees(recipe: Recipe) -> Recipe:
    """GRPO's loss on trees that fork at random tokens, as a suggestion."""
    return like_grpo(recipe).suggest("rollouts.sampler", RandomForkSampling())


@idea(**TREE_GRPO)
def tree_grpo(recipe: Recipe) -> Recipe:
    """Compares a rollout with all of its prompt and with those of its tree, and adds the two."""
    return in_trees(
        recipe.append("advantages.shaping", IntraTree()).suggest(
            "advantages.estimator", GroupZScore()
        )
    )


@idea(**TREE_GRPO)
def tree_grpo_inner(recipe: Recipe) -> Recipe:
    """Compares a rollout with those of its tree only."""
    return in_trees(recipe.claim("advantages.estimator", TreeZScore()))


@idea("tree-grpo-2norm", **TREE_GRPO)
def tree_grpo_two_norm(recipe: Recipe) -> Recipe:
    """Standardises over the prompt, then the result over each tree."""
    return in_trees(
        recipe.append("advantages.shaping", RescoreByTree()).suggest(
            "advantages.estimator", GroupZScore()
        )
    )
