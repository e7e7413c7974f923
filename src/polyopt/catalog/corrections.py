"""Corrections and selections that shape a loss: weights, rejections, budgets, control rollouts."""

from __future__ import annotations

from polyopt.advantages.baselines import GroupZScore
from polyopt.advantages.controls import controls_by_reward
from polyopt.advantages.scales import PopulationZScore
from polyopt.advantages.signs import negative_part
from polyopt.advantages.truncated_values import ExtendedGAE
from polyopt.ideas import idea
from polyopt.levels import RolloutSum
from polyopt.objectives.aggregation import (
    TokenBudgetMean,
    sequence_mean_token_mean,
    token_mean,
)
from polyopt.objectives.controls import ControlledSurrogate, WithControls
from polyopt.objectives.ratios import sequence_ratio
from polyopt.objectives.surrogates import ClippedSurrogate, PolicyGradient
from polyopt.objectives.value_losses import FinishedValueLoss
from polyopt.recipe import Recipe
from polyopt.rewards.controls import controls_apart
from polyopt.rollouts.demonstrations import ShowSolution
from polyopt.rollouts.tempered import TemperedControls
from polyopt.selection.budgets import TokenBudget
from polyopt.selection.controls import SpliceControls
from polyopt.selection.corrections import (
    MaskedIS,
    RejectByDivergence,
    RejectByRatio,
    TruncatedIS,
    rollout_tis,
    sampler_as_old,
    unit_mean_rollout_weights,
    unit_mean_token_weights,
)
from polyopt.selection.entropy_weights import EntropyGuidedRollouts, EntropyGuidedTokens
from polyopt.selection.golden import gold_where_all_failed
from polyopt.selection.mastered import MaskMasteredTokens
from polyopt.selection.windows import StalenessLimit, newest_tokens
from polyopt.updates.rules import GradientSteps

TIS = {
    "title": "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training",
    "paper": "Yao et al. 2025 (blog)",
    "certainty": "framework code read and run",
}


@idea("tis", **TIS)
def tis(recipe: Recipe) -> Recipe:
    """Weights each token for what the sampler's numerics did to it, cut off at 2."""
    return recipe.append("selection.parts", TruncatedIS())


@idea("tis-sequence", **TIS)
def tis_sequence(recipe: Recipe) -> Recipe:
    """The same for the completion as one action."""
    return recipe.append("selection.parts", rollout_tis())


@idea("tis-normalized", **TIS)
def tis_normalized(recipe: Recipe) -> Recipe:
    """Token weights cut off at 2 and divided by their mean."""
    return recipe.append("selection.parts", TruncatedIS(), unit_mean_token_weights)


@idea("tis-sequence-normalized", **TIS)
def tis_sequence_normalized(recipe: Recipe) -> Recipe:
    """Completion weights cut off at 2 and divided by their mean over rollouts."""
    return recipe.append("selection.parts", rollout_tis(), unit_mean_rollout_weights)


@idea("sampler-ratio", **TIS)
def sampler_ratio(recipe: Recipe) -> Recipe:
    """The ratio's denominator is what the engine reported: mismatch and step in one ratio."""
    return recipe.append("selection.parts", sampler_as_old)


@idea("reject-mismatch", **TIS)
def reject_mismatch(recipe: Recipe) -> Recipe:
    """Tokens for which sampler and trainer differ by more than a factor of 2 don't train."""
    return recipe.append("selection.parts", RejectByRatio())


@idea("reject-mismatched-rollouts", **TIS)
def reject_mismatched_rollouts(recipe: Recipe) -> Recipe:
    """Rollouts whose mean k3 between sampler and trainer is above 0.1 don't train."""
    return recipe.append("selection.parts", RejectByDivergence())


@idea("reject-mismatched-products", **TIS)
def reject_mismatched_products(recipe: Recipe) -> Recipe:
    """Rollouts whose probability differs by more than a factor of 2 don't train."""
    return recipe.append("selection.parts", RejectByRatio(level=RolloutSum()))


@idea(
    title="AReaL: A Large-Scale Asynchronous Reinforcement Learning System for Language Reasoning",
    paper="arXiv 2505.24298",
    certainty="official code read and run; staleness limit from memory",
)
def areal_decoupled_ppo(recipe: Recipe) -> Recipe:
    """PPO around the trainer's own policy, weighted for the stale one that sampled."""
    return (
        recipe.append("selection.screens", StalenessLimit())
        .append("selection.parts", MaskedIS())
        .suggest("objective.surrogate", ClippedSurrogate(0.2, 0.2))
        .suggest("objective.aggregation", token_mean)
        .suggest("advantages.estimator", GroupZScore())
        .suggest("updates.rule", GradientSteps(minibatches=4))
    )


@idea(
    title="UloRL: An Ultra-Long Output Reinforcement Learning Approach for Advancing Large "
    "Language Models' Reasoning Abilities",
    paper="arXiv 2507.19766",
    certainty="masking rule from the authors' article; target entropy from memory",
)
def ulorl_mpt(recipe: Recipe) -> Recipe:
    """Positive tokens that are as good as certain don't train while entropy is low."""
    return (
        recipe.append("selection.parts", MaskMasteredTokens())
        .suggest("advantages.estimator", PopulationZScore())
        .suggest("objective.surrogate", PolicyGradient())
        .suggest("objective.aggregation", token_mean)
    )


EGSW = {
    "title": "Entropy-guided sequence weighting for efficient exploration in RL-based LLM "
    "fine-tuning",
    "paper": "arXiv 2503.22456",
    "certainty": "weights from a summary; aggregation reconstructed",
}


def _weighted_groups(recipe: Recipe) -> Recipe:
    return (
        recipe.suggest("advantages.estimator", GroupZScore())
        .suggest("objective.surrogate", ClippedSurrogate(0.2, 0.2))
        .suggest("objective.aggregation", sequence_mean_token_mean)
    )


@idea("egsw", **EGSW)
def egsw(recipe: Recipe) -> Recipe:
    """At each position a softmax over the group of advantage and entropy weighs the tokens."""
    return _weighted_groups(recipe.append("selection.parts", EntropyGuidedTokens()))


@idea("egsw-trajectory", **EGSW)
def egsw_trajectory(recipe: Recipe) -> Recipe:
    """A softmax over the group of advantage and entropy weighs whole rollouts."""
    return _weighted_groups(recipe.append("selection.parts", EntropyGuidedRollouts()))


@idea(
    title="Ring-lite: Scalable Reasoning via C3PO-Stabilized Reinforcement Learning for LLMs",
    paper="arXiv 2506.14731",
    certainty="secondary description; fill order and cut reconstructed",
)
def c3po(recipe: Recipe) -> Recipe:
    """A fixed number of tokens trains each step, and it is the denominator."""
    return (
        recipe.append("selection.parts", TokenBudget())
        .claim("objective.aggregation", TokenBudgetMean())
        .suggest("advantages.estimator", GroupZScore())
        .suggest("objective.surrogate", ClippedSurrogate(0.2, 0.2))
    )


AEPO = {"title": "Arbitrary Entropy Policy Optimization", "paper": "arXiv 2510.08141"}


@idea("aepo", **AEPO, certainty="official trainer read; own implementation")
def aepo(recipe: Recipe) -> Recipe:
    """Better rollouts at another temperature replace plain ones, to hold entropy at a target."""
    return (
        recipe.claim("rollouts.sampler", TemperedControls())
        .append("rewards.shaping", controls_apart)
        .append("selection.parts", SpliceControls())
        .suggest("advantages.estimator", GroupZScore())
        .suggest("objective.surrogate", ClippedSurrogate(0.2, 0.2))
        .suggest("objective.aggregation", token_mean)
    )


@idea("aepo-equation", **AEPO, certainty="README's equation; own implementation")
def aepo_equation(recipe: Recipe) -> Recipe:
    """The paper's form: a REINFORCE term on rollouts at another temperature, beside the loss."""
    return (
        recipe.claim("rollouts.sampler", TemperedControls())
        .append("rewards.shaping", controls_apart)
        .append("advantages.shaping", controls_by_reward)
        .claim("objective.surrogate", ControlledSurrogate())
        .claim("objective.aggregation", WithControls())
        .suggest("advantages.estimator", GroupZScore())
    )


@idea(
    title="GCPO: When Contrast Fails, Go Gold",
    paper="arXiv 2510.07790",
    certainty="reconstructed from abstract and summary",
)
def gcpo(recipe: Recipe) -> Recipe:
    """A golden answer takes a rollout's place where all failed; sequence ratio, no reference."""
    return (
        recipe.append("rollouts.additions", ShowSolution())
        .append("selection.screens", gold_where_all_failed)
        .claim("objective.ratio", sequence_ratio)
        .suggest("objective.surrogate", ClippedSurrogate(0.2, 0.28))
        .suggest("objective.aggregation", sequence_mean_token_mean)
        .suggest("advantages.estimator", PopulationZScore())
        .suggest("objective.kl", None)
    )


@idea(
    title="The Debate on RLVR Reasoning Capability Boundary: Shrinkage, Expansion, or Both?",
    paper="arXiv 2510.04028",
    certainty="secondary summary; deviation and denominators ours",
)
def nsr_two_stage(recipe: Recipe) -> Recipe:
    """Only what is worse than its group is pushed down (GRPO-N; with gspo it is GSPO-N)."""
    return (
        recipe.append("advantages.shaping", negative_part)
        .suggest("advantages.estimator", GroupZScore())
        .suggest("objective.surrogate", ClippedSurrogate(0.2, 0.2))
        .suggest("objective.aggregation", sequence_mean_token_mean)
    )


@idea(
    title="Truncated Proximal Policy Optimization",
    paper="arXiv 2506.15050",
    certainty="EGAE from a secondary text; token filtering reconstructed from the abstract",
)
def t_ppo(recipe: Recipe) -> Recipe:
    """Credit for unfinished rollouts; each window trains once, the value head on finished ones."""
    return (
        recipe.claim("advantages.estimator", ExtendedGAE())
        .claim("objective.value", FinishedValueLoss())
        .append("selection.parts", newest_tokens)
        .suggest("objective.surrogate", ClippedSurrogate(0.2, 0.2))
        .suggest("objective.aggregation", token_mean)
        .suggest("updates.rule", GradientSteps(minibatches=2))
    )
