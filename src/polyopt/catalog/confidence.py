"""Credit by confidence, entropy and agreement."""

from __future__ import annotations

from polyopt.advantages.baselines import GroupZScore, group_mean_baseline
from polyopt.advantages.halves import EntropyHalves, LengthHalves
from polyopt.advantages.uncertainty import (
    BatchEntropyScale,
    EntropyScale,
    LikelihoodSemanticEntropyDiscount,
    SemanticEntropyDiscount,
)
from polyopt.advantages.zero_variance import CentredFailures, EntropyForSilentGroups
from polyopt.ideas import idea
from polyopt.objectives.aggregation import ConstantLength, sequence_mean_token_mean, token_mean
from polyopt.objectives.penalties import KLPenaltyK3
from polyopt.objectives.surrogates import ClippedSurrogate
from polyopt.recipe import Recipe
from polyopt.rewards.answer_classes import answer_class
from polyopt.rewards.confidence import ConfidenceCalibration, UnlikelinessReward
from polyopt.updates.rules import GradientSteps

OFFICIAL = "official code read and run"


@idea(
    title="Don't Waste Mistakes: Leveraging Negative RL-Groups via Confidence Reweighting",
    paper="arXiv 2510.08696",
    certainty="paper's sections 4 to 6 read; no code found",
)
def lens(recipe: Recipe) -> Recipe:
    """Wrong rollouts pay for their confidence, so groups without any success learn too."""
    return (
        recipe.claim("advantages.estimator", CentredFailures())
        .append("rewards.shaping", ConfidenceCalibration())
        .suggest("objective.surrogate", ClippedSurrogate(0.2, 0.2))
        .suggest("objective.aggregation", sequence_mean_token_mean)
        .suggest("objective.kl", None)
    )


@idea(
    "rl-zvp",
    title="No Prompt Left Behind: Exploiting Zero-Variance Prompts in LLM Reinforcement Learning "
    "via Entropy-Guided Advantage Shaping",
    paper="arXiv 2509.21880",
    certainty="paper's sections 3 and 4 and appendix C read; code not located",
)
def rl_zvp(recipe: Recipe) -> Recipe:
    """Groups of equal rewards learn too: each token's entropy is its credit."""
    return _clip_higher(
        recipe.append("advantages.shaping", EntropyForSilentGroups()).suggest(
            "advantages.estimator", GroupZScore()
        )
    )


EDGE = {
    "title": "EDGE-GRPO: Entropy-Driven GRPO with Guided Error Correction for Advantage Diversity",
    "paper": "arXiv 2507.21848",
}


@idea("edge-grpo", **EDGE, certainty="paper's scope; without its guided error correction")
def edge_grpo(recipe: Recipe) -> Recipe:
    """Credit over relative entropy within the group: confident rollouts count more."""
    return _edge(recipe.append("advantages.shaping", EntropyScale()))


@idea("edge-grpo-batch", **EDGE, certainty="official lines run; without its error correction")
def edge_grpo_batch(recipe: Recipe) -> Recipe:
    """EDGE-GRPO as its authors' code has it: entropy relative to the whole batch."""
    return _edge(recipe.append("advantages.shaping", BatchEntropyScale()))


def _edge(recipe: Recipe) -> Recipe:
    return (
        recipe.suggest("advantages.estimator", GroupZScore(1e-4))
        .suggest("objective.surrogate", ClippedSurrogate(0.2, 0.2))
        .suggest("objective.aggregation", token_mean)
        .suggest("objective.kl", None)
    )


SEED = {
    "title": "SEED-GRPO: Semantic Entropy Enhanced GRPO for Uncertainty-Aware Policy Optimization",
    "paper": "arXiv 2505.12346",
    "certainty": "abstract and a review's formulas; alpha and f from memory",
}


@idea("seed-grpo", **SEED)
def seed_grpo(recipe: Recipe) -> Recipe:
    """Smaller steps on prompts whose answers disagree, by share of rollouts."""
    return _seed(recipe.append("advantages.shaping", SemanticEntropyDiscount()))


@idea("seed-grpo-likelihood", **SEED)
def seed_grpo_likelihood(recipe: Recipe) -> Recipe:
    """Smaller steps on prompts whose answers disagree, by probability of the rollouts."""
    return _seed(recipe.append("advantages.shaping", LikelihoodSemanticEntropyDiscount()))


def _seed(recipe: Recipe) -> Recipe:
    return (
        with_answer_classes(recipe)
        .suggest("advantages.estimator", group_mean_baseline)
        .suggest("objective.surrogate", ClippedSurrogate(0.2, 0.2))
        .suggest("objective.aggregation", ConstantLength())
        .suggest("objective.kl", None)
    )


def with_answer_classes(recipe: Recipe) -> Recipe:
    """The recipe with the column `answer_class`, which several ideas read."""
    if "answer_class" in recipe.provides():
        return recipe
    return recipe.append("rewards.shaping", answer_class)


@idea(
    "unlikeliness-reward",
    title="Rewarding the Unlikely: Lifting GRPO Beyond Distribution Sharpening",
    paper="arXiv 2506.02355",
    certainty=OFFICIAL,
)
def unlikeliness_reward(recipe: Recipe) -> Recipe:
    """Of a prompt's right rollouts the likeliest earn least; two passes over each batch."""
    return (
        recipe.append("rewards.shaping", UnlikelinessReward())
        .suggest("advantages.estimator", GroupZScore())
        .suggest("updates.rule", GradientSteps(epochs=2))
        .suggest("objective.surrogate", ClippedSurrogate(0.2, 0.2))
        .suggest("objective.aggregation", sequence_mean_token_mean)
        .suggest("objective.kl", KLPenaltyK3(0.1))
    )


CANON = {
    "title": "Conditional Advantage Estimation for Reinforcement Learning in Large Reasoning "
    "Models",
    "paper": "arXiv 2509.23962",
    "certainty": OFFICIAL,
}


@idea(**CANON)
def canon(recipe: Recipe) -> Recipe:
    """Each rollout against the half of its group that differs in entropy."""
    return _canon(recipe.claim("advantages.estimator", EntropyHalves()))


@idea("canon-length", **CANON)
def canon_length(recipe: Recipe) -> Recipe:
    """Each rollout against the half of its group that differs in length."""
    return _canon(recipe.claim("advantages.estimator", LengthHalves()))


def _canon(recipe: Recipe) -> Recipe:
    return (
        recipe.suggest("objective.surrogate", ClippedSurrogate(0.2, 0.28))
        .suggest("objective.aggregation", ConstantLength())
        .suggest("objective.kl", None)
    )


def _clip_higher(recipe: Recipe) -> Recipe:
    """DAPO's clip range and loss, which several of these methods come with."""
    return (
        recipe.suggest("objective.surrogate", ClippedSurrogate(0.2, 0.28))
        .suggest("objective.aggregation", token_mean)
        .suggest("objective.kl", None)
    )
