"""How steps are taken: proximal policies, passes, penalties that adapt, natural gradients."""

from __future__ import annotations

from polyopt.advantages.baselines import GroupZScore
from polyopt.advantages.token_probability import ProbabilityReweight
from polyopt.divergences import UnnormalizedForwardKL
from polyopt.ideas import idea
from polyopt.objectives.aggregation import token_mean
from polyopt.objectives.penalties import KLPenaltyK3
from polyopt.objectives.regularized import DecoupledClip
from polyopt.objectives.surrogates import ClippedSurrogate, ImportanceWeighted
from polyopt.objectives.trust_regions import StepDivergence
from polyopt.recipe import Recipe
from polyopt.rewards.shaping import KLInReward
from polyopt.updates.averaging import SoupReference
from polyopt.updates.fix_up import FixUp, MeanFixUp
from polyopt.updates.natural_gradient import TrustRegionUpdate
from polyopt.updates.proximal import (
    AveragedProximal,
    HighProbabilityFirst,
    LowProbabilityFirst,
)


def on_groups(recipe: Recipe) -> Recipe:
    """GRPO's credit, token mean, no reference."""
    return (
        recipe.suggest("advantages.estimator", GroupZScore())
        .suggest("objective.aggregation", token_mean)
        .suggest("objective.kl", None)
    )


@idea(
    title="Batch size-invariance for policy optimization",
    paper="arXiv 2110.00641",
    certainty="official code read and run; decay from memory",
)
def ppo_ewma(recipe: Recipe) -> Recipe:
    """Clips around a moving average of the policy's own weights, whatever policy sampled."""
    return on_groups(
        recipe.claim("updates.rule", AveragedProximal()).claim(
            "objective.surrogate", DecoupledClip()
        )
    )


FIXPO = {
    "title": "Guaranteed Trust Region Optimization via Two-Phase KL Penalization",
    "paper": "arXiv 2312.05405",
    "certainty": "official code read; own implementation, divergence from sampled tokens",
}


def _penalised(recipe: Recipe, rule: FixUp) -> Recipe:
    return on_groups(
        recipe.claim("updates.rule", rule)
        .claim("objective.surrogate", ImportanceWeighted())
        .append("objective.trust_region", StepDivergence(UnnormalizedForwardKL(), rule.beta))
    )


@idea("fixpo", **FIXPO)
def fixpo(recipe: Recipe) -> Recipe:
    """An adaptive KL penalty in place of the clip, then steps until no token is out of range."""
    return _penalised(recipe, FixUp())


@idea("fixpo-mean", **FIXPO)
def fixpo_mean(recipe: Recipe) -> Recipe:
    """The same with the mean divergence held in range."""
    return _penalised(recipe, MeanFixUp())


@idea(
    title="Trust Region Policy Optimization",
    paper="arXiv 1502.05477",
    certainty="standard algorithm; curvature by differences of gradients is ours",
)
def trpo(recipe: Recipe) -> Recipe:
    """The natural-gradient step that a KL ball allows, shortened until it improves."""
    return on_groups(
        recipe.claim("updates.rule", TrustRegionUpdate())
        .claim("objective.surrogate", ImportanceWeighted())
        .append("objective.trust_region", StepDivergence(UnnormalizedForwardKL(), 0.0))
    )


LOW_PROBABILITY = {
    "title": "Do Not Let Low-Probability Tokens Over-Dominate in RL for LLMs",
    "paper": "2025",
    "certainty": "official code read and run",
}


def _as_published(recipe: Recipe) -> Recipe:
    """The loss of the official scripts."""
    return (
        recipe.suggest("advantages.estimator", GroupZScore())
        .suggest("objective.surrogate", ClippedSurrogate(0.2, 0.24, 10.0))
        .suggest("objective.aggregation", token_mean)
        .suggest("objective.kl", KLPenaltyK3(0.001))
    )


@idea("advantage-reweighting", **LOW_PROBABILITY)
def advantage_reweighting(recipe: Recipe) -> Recipe:
    """Unlikely tokens, whose gradients are large, get less credit."""
    return _as_published(recipe.append("advantages.shaping", ProbabilityReweight(0.2)))


@idea("lopti", **LOW_PROBABILITY)
def lopti(recipe: Recipe) -> Recipe:
    """Unlikely tokens train first, in an update of their own; then the others."""
    return _as_published(recipe.claim("updates.rule", LowProbabilityFirst()))


@idea("lopti-high-first", **LOW_PROBABILITY)
def lopti_high_first(recipe: Recipe) -> Recipe:
    """The same in the other order."""
    return _as_published(recipe.claim("updates.rule", HighProbabilityFirst()))


@idea("ar-lopti", **LOW_PROBABILITY)
def ar_lopti(recipe: Recipe) -> Recipe:
    """Both: less credit for unlikely tokens, and an update of their own."""
    both = recipe.append("advantages.shaping", ProbabilityReweight(0.3))
    return _as_published(both.claim("updates.rule", LowProbabilityFirst()))


@idea(
    title="SALSA: Soup-based Alignment Learning for Stronger Adaptation in RLHF",
    paper="arXiv 2411.01798",
    certainty="abstract only; equal shares stand for 'averaging'",
)
def salsa(recipe: Recipe) -> Recipe:
    """The reference is the average of two independently fine-tuned models; KL in the reward."""
    return (
        recipe.claim("updates.reference", SoupReference())
        .append("rewards.shaping", KLInReward(0.05))
        .suggest("advantages.estimator", GroupZScore())
        .suggest("objective.surrogate", ClippedSurrogate(0.2, 0.2))
        .suggest("objective.aggregation", token_mean)
        .suggest("objective.kl", None)
    )
