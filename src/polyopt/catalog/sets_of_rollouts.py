"""Credit for sets: best of k, bundles, diverse sets, lists and thoughts with several answers."""

from __future__ import annotations

from polyopt.advantages.best_of_k import (
    BestOfKLeaveOneOut,
    BestOfKMarginal,
    BestOfKZScore,
)
from polyopt.advantages.consistency import LocalAndGlobal
from polyopt.advantages.ranked_lists import RankZScore
from polyopt.advantages.risk import MixedValueAtRisk
from polyopt.advantages.sets import PolychromicSets
from polyopt.advantages.thoughts import ThoughtAndAnswer
from polyopt.catalog.confidence import OFFICIAL, with_answer_classes
from polyopt.ideas import idea
from polyopt.objectives.aggregation import sequence_mean_token_mean, token_mean
from polyopt.objectives.best_of_k import ExactOffPolicyBestOfK, OffPolicyBestOfK
from polyopt.objectives.blended_clip import BlendedClip
from polyopt.objectives.item_ratio import ItemRatio
from polyopt.objectives.penalties import KLPenaltyK3
from polyopt.objectives.surrogates import ClippedSurrogate
from polyopt.objectives.thoughts import thought_mean_answer_mean
from polyopt.recipe import Recipe
from polyopt.rewards.ranked_lists import (
    LineHits,
    LineItems,
    discounted_rank_rewards,
    own_rank_rewards,
)
from polyopt.rollouts.thoughts import ThoughtsThenAnswers
from polyopt.updates.rules import GradientSteps


@idea(
    title="COPO: Consistency-Aware Policy Optimization",
    paper="arXiv 2508.04138",
    certainty="official functions transcribed and run; which blending the paper's runs use unseen",
)
def copo(recipe: Recipe) -> Recipe:
    """Two clipped losses blended by how consistent a prompt's answers are: within and between."""
    return (
        with_answer_classes(recipe)
        .claim("advantages.estimator", LocalAndGlobal())
        .claim("objective.surrogate", BlendedClip())
        .suggest("objective.aggregation", token_mean)
        .suggest("objective.kl", None)
    )


@idea(
    title="RiskPO: Risk-based Policy Optimization via Verifiable Reward for LLM Post-Training",
    paper="arXiv 2510.00911",
    certainty=OFFICIAL,
)
def riskpo(recipe: Recipe) -> Recipe:
    """Bundles of prompts, and credit by where a bundle's score falls among tracked quantiles."""
    return (
        recipe.claim("advantages.estimator", MixedValueAtRisk())
        .suggest("objective.surrogate", ClippedSurrogate(0.2, 0.2))
        .suggest("objective.aggregation", token_mean)
        .suggest("objective.kl", None)
    )


MAX_AT_K = {
    "title": "The Best of N Worlds: Aligning Reinforcement Learning with Best-of-N Sampling via "
    "max@k Optimisation",
    "paper": "arXiv 2510.23393",
    "certainty": "paper's sections 2 to 4 read; which baseline its runs use isn't known",
}


@idea("max-at-k", **MAX_AT_K)
def max_at_k(recipe: Recipe) -> Recipe:
    """Improves the best of k rollouts (pass@k for right or wrong), against the others' best."""
    claimed = recipe.claim("advantages.estimator", BestOfKLeaveOneOut())
    return _max_at_k(claimed.suggest("objective.surrogate", ClippedSurrogate(0.2, 0.2)))


@idea("max-at-k-marginal", **MAX_AT_K)
def max_at_k_marginal(recipe: Recipe) -> Recipe:
    """max@k by what each rollout adds to the sets it is in."""
    claimed = recipe.claim("advantages.estimator", BestOfKMarginal())
    return _max_at_k(claimed.suggest("objective.surrogate", ClippedSurrogate(0.2, 0.2)))


@idea("max-at-k-z", **MAX_AT_K)
def max_at_k_z(recipe: Recipe) -> Recipe:
    """max@k by z-scores of the transformed rewards."""
    claimed = recipe.claim("advantages.estimator", BestOfKZScore())
    return _max_at_k(claimed.suggest("objective.surrogate", ClippedSurrogate(0.2, 0.2)))


@idea("max-at-k-off-policy", **MAX_AT_K)
def max_at_k_off_policy(recipe: Recipe) -> Recipe:
    """max@k with credit renewed at each optimizer step by the sequence ratios, to first order."""
    claimed = recipe.claim("objective.surrogate", OffPolicyBestOfK())
    return _max_at_k(claimed.suggest("advantages.estimator", BestOfKZScore()))


@idea("max-at-k-exact", **MAX_AT_K)
def max_at_k_exact(recipe: Recipe) -> Recipe:
    """max@k with credit renewed at each optimizer step by the whole products of ratios."""
    claimed = recipe.claim("objective.surrogate", ExactOffPolicyBestOfK())
    return _max_at_k(claimed.suggest("advantages.estimator", BestOfKZScore()))


def _max_at_k(recipe: Recipe) -> Recipe:
    return (
        recipe.suggest("updates.rule", GradientSteps(epochs=3))
        .suggest("objective.aggregation", sequence_mean_token_mean)
        .suggest("objective.kl", KLPenaltyK3(0.01))
    )


@idea(
    title="Polychromic Objectives for Reinforcement Learning",
    paper="arXiv 2509.25424",
    certainty="abstract and a secondary note; how sets are drawn is ours",
)
def polychromic(recipe: Recipe) -> Recipe:
    """Sets of rollouts judged together, by success times diversity of their answers."""
    return (
        with_answer_classes(recipe)
        .claim("advantages.estimator", PolychromicSets())
        .suggest("objective.surrogate", ClippedSurrogate(0.2, 0.2))
        .suggest("objective.aggregation", token_mean)
    )


RANK = {
    "title": "Rank-GRPO: Training LLM-based Conversational Recommender Systems with Reinforcement "
    "Learning",
    "paper": "arXiv 2510.20150",
    "certainty": "official code read, its loss run; rewards and advantages re-implemented",
}


@idea("rank-grpo", **RANK)
def rank_grpo(recipe: Recipe) -> Recipe:
    """Lists, one item a line: credit and ratio per rank, each item paid for its own hit."""
    return _rank(recipe.append("rewards.shaping", LineHits(), own_rank_rewards))


@idea("rank-grpo-log-decay", **RANK)
def rank_grpo_log_decay(recipe: Recipe) -> Recipe:
    """Lists, one item a line: each item paid for the discounted gain from its rank on."""
    return _rank(recipe.append("rewards.shaping", LineHits(), discounted_rank_rewards))


def _rank(recipe: Recipe) -> Recipe:
    return (
        recipe.append("rewards.shaping", LineItems())
        .claim("advantages.estimator", RankZScore())
        .claim("objective.ratio", ItemRatio())
        .claim("objective.surrogate", ClippedSurrogate(0.06, 0.08))
        .suggest("objective.aggregation", token_mean)
        .suggest("objective.kl", KLPenaltyK3(1e-3))
    )


@idea(
    "grpo-ma",
    title="GRPO-MA: Multi-Answer Generation in GRPO for Stable and Efficient Chain-of-Thought "
    "Training",
    paper="arXiv 2509.24494",
    certainty="abstract and reviews; equations from memory",
)
def grpo_ma(recipe: Recipe) -> Recipe:
    """Four thoughts with four answers each: a thought is judged by the mean of its answers."""
    return (
        recipe.claim("rollouts.sampler", ThoughtsThenAnswers())
        .claim("advantages.estimator", ThoughtAndAnswer())
        .claim("objective.aggregation", thought_mean_answer_mean)
        .suggest("rollouts.per_prompt", 16)
        .suggest("objective.surrogate", ClippedSurrogate(0.2, 0.2))
    )
