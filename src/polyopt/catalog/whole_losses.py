"""Losses over rollouts, pairs and groups: regressions, contrasts, preferences, classifiers."""

from __future__ import annotations

import math

from polyopt.advantages.baselines import GroupZScore, group_mean_baseline, raw_reward
from polyopt.advantages.optimal_value import OptimalValueBaseline
from polyopt.advantages.supervised import SuccessRateWeight
from polyopt.divergences import K3, ReverseKL
from polyopt.ideas import idea
from polyopt.objectives.aggregation import ConstantLength, sequence_mean_token_mean, token_mean
from polyopt.objectives.bellman import UniformPolicyRegression
from polyopt.objectives.classification import NegativeAware, OutcomeClassifier
from polyopt.objectives.contrastive import (
    KLConstraint,
    LengthTiltedContrast,
    LikelihoodContrast,
    RatioContrast,
    StepPenalty,
)
from polyopt.objectives.partition import FlowBalance
from polyopt.objectives.penalties import KLPenaltyK3
from polyopt.objectives.plackett_luce import TrajectorySoftmax
from polyopt.objectives.preferences import PreferencePairs
from polyopt.objectives.regressions import (
    ContrastiveGradient,
    FixedScaleRegression,
    GroupVarianceRegression,
    OptimalAdvantageRegression,
    RelativeRewardRegression,
    StandardisedRegression,
    TrajectoryBalance,
)
from polyopt.objectives.surrogates import ImportanceWeighted
from polyopt.objectives.trust_regions import StepDivergence
from polyopt.recipe import Recipe
from polyopt.replay.softmax import RewardSoftmaxReplay
from polyopt.rewards.levels import preference_levels
from polyopt.selection.balance import class_balance
from polyopt.selection.screens import DynamicSampling
from polyopt.updates.rules import GradientSteps

CODE = "official code read; its loss run"
REG_GRPO = {
    "title": "DeepVideo-R1: Video Reinforcement Fine-Tuning via Difficulty-aware Regressive GRPO",
    "paper": "arXiv 2506.07464",
    "certainty": "reconstructed: formulas from a third-party note, eps and n - 1 are GRPO's",
}
DISCO = {
    "title": "DisCO: Reinforcing Large Reasoning Models with Discriminative Constrained "
    "Optimization",
    "paper": "arXiv 2505.12366",
    "certainty": CODE,
}


@idea(
    title="REBEL: Reinforcement Learning via Regressing Relative Rewards",
    paper="arXiv 2404.16767",
    certainty=CODE + "; pairs among more than two rollouts are ours",
)
def rebel(recipe: Recipe) -> Recipe:
    """Differences of movement between a prompt's rollouts are regressed on reward differences."""
    return (
        recipe.claim("objective.surrogate", RelativeRewardRegression())
        .suggest("advantages.estimator", raw_reward)
        .suggest("objective.kl", None)
    )


@idea(
    "a-star-po",
    title="Accelerating RL for LLM Reasoning with Optimal Advantage Regression",
    paper="arXiv 2505.20686",
    certainty=CODE,
)
def a_star_po(recipe: Recipe) -> Recipe:
    """The log-ratio to the reference is regressed on reward less a value known before training."""
    return (
        recipe.claim("advantages.estimator", OptimalValueBaseline())
        .claim("objective.surrogate", OptimalAdvantageRegression())
        .claim("objective.aggregation", sequence_mean_token_mean)
        .suggest("rollouts.per_prompt", 1)
        .suggest("objective.kl", None)
    )


@idea(
    title="GVPO: Group Variance Policy Optimization for Large Language Model Post-Training",
    paper="arXiv 2504.19599",
    certainty=CODE,
)
def gvpo(recipe: Recipe) -> Recipe:
    """Centred movements of a group are regressed on its centred rewards."""
    return (
        recipe.claim("objective.surrogate", GroupVarianceRegression())
        .suggest("advantages.estimator", group_mean_baseline)
        .suggest("objective.kl", None)
    )


@idea("reg-grpo", **REG_GRPO)
def reg_grpo(recipe: Recipe) -> Recipe:
    """The z-score of a group's movements is regressed on the z-score of its rewards."""
    return _regressive(recipe, StandardisedRegression())


@idea("reg-grpo-fixed-scale", **REG_GRPO)
def reg_grpo_fixed_scale(recipe: Recipe) -> Recipe:
    """`reg-grpo` without a gradient through the deviation of the movements."""
    return _regressive(recipe, FixedScaleRegression())


def _regressive(recipe: Recipe, regression: StandardisedRegression) -> Recipe:
    return (
        recipe.claim("objective.surrogate", regression)
        .suggest("advantages.estimator", GroupZScore())
        .suggest("objective.aggregation", sequence_mean_token_mean)
        .suggest("objective.kl", KLPenaltyK3(0.04))
    )


@idea(
    title="Trajectory Balance with Asynchrony",
    paper="arXiv 2503.18929",
    certainty=CODE + "; its estimate mixes prompts if a micro-batch has several: ours doesn't",
)
def tba(recipe: Recipe) -> Recipe:
    """Trajectory balance against a reward-tilted reference, on fresh and replayed rollouts."""
    return (
        recipe.claim("objective.surrogate", TrajectoryBalance())
        .suggest("replay.buffer", RewardSoftmaxReplay())
        .suggest("advantages.estimator", raw_reward)
        .suggest("objective.kl", None)
    )


@idea(
    title="Contrastive Policy Gradient: Aligning LLMs on sequence-level scores in a "
    "supervised-friendly fashion",
    paper="arXiv 2406.19185",
    certainty="equation from secondary descriptions; constant as in the Command A report",
)
def copg(recipe: Recipe) -> Recipe:
    """Each rollout's baseline is the other's regularised reward; sound on any rollouts."""
    return (
        recipe.claim("objective.surrogate", ContrastiveGradient())
        .suggest("advantages.estimator", raw_reward)
        .suggest("objective.kl", None)
    )


@idea(
    title="FlowRL: Matching Reward Distributions for LLM Reasoning",
    paper="arXiv 2509.15207",
    certainty=CODE + "; log Z from polyopt's linear value head",
)
def flowrl(recipe: Recipe) -> Recipe:
    """The policy is matched to a reward distribution with a learned log-partition."""
    return (
        recipe.claim("objective.surrogate", FlowBalance())
        .claim("objective.aggregation", sequence_mean_token_mean)
        .suggest("advantages.estimator", GroupZScore())
        .suggest("objective.kl", None)
    )


@idea(
    title="HAEPO: History-Aggregated Exploratory Policy Optimization",
    paper="arXiv 2508.18884",
    certainty="reconstructed from the abstract; coefficients are ours",
)
def haepo(recipe: Recipe) -> Recipe:
    """Expected reward under a softmax of whole-trajectory log-probabilities, with its entropy."""
    return (
        recipe.claim("objective.surrogate", TrajectorySoftmax())
        .suggest("advantages.estimator", raw_reward)
        .suggest("objective.kl", None)
    )


@idea("disco", **DISCO)
def disco(recipe: Recipe) -> Recipe:
    """Raises right answers over the hardest wrong ones; KL is free up to a bound."""
    return _discriminative(recipe, LikelihoodContrast())


@idea("disco-ratio", **DISCO)
def disco_ratio(recipe: Recipe) -> Recipe:
    """`disco` with likelihood ratios as scores."""
    return _discriminative(recipe, RatioContrast())


@idea("disco-b", **DISCO)
def disco_b(recipe: Recipe) -> Recipe:
    """`disco` against the mean of the wrong answers."""
    return _discriminative(recipe, LikelihoodContrast(tau=math.inf))


@idea(
    title="DRPO: Decoupled Reward Policy Optimization",
    paper="arXiv 2510.04474",
    certainty=CODE,
)
def drpo(recipe: Recipe) -> Recipe:
    """`disco` where short right answers weigh more; length never reaches the wrong ones."""
    return _discriminative(recipe, LengthTiltedContrast())


def _discriminative(recipe: Recipe, contrast: LikelihoodContrast) -> Recipe:
    return (
        recipe.claim("objective.surrogate", contrast)
        .claim("objective.kl", KLConstraint())
        .claim("objective.aggregation", token_mean)
        .suggest("updates.rule", GradientSteps(minibatches=4))
    )


@idea(
    title="Trust Region Preference Approximation",
    paper="TRPA, 2025",
    certainty=CODE,
)
def trpa(recipe: Recipe) -> Recipe:
    """Rules order a prompt's answers; every pair is a preference, near the old policy."""
    return (
        recipe.claim("objective.surrogate", PreferencePairs())
        .append("rewards.shaping", preference_levels)
        .claim("objective.kl", StepPenalty(1e-3, K3(bound=10.0)))
        .suggest("objective.aggregation", token_mean)
    )


@idea(
    title="Implicit Actor Critic Coupling via a Supervised Learning Framework for RLVR",
    paper="arXiv 2509.02522",
    certainty=CODE,
)
def pacs(recipe: Recipe) -> Recipe:
    """A classifier of right and wrong whose logits are the policy's own log-ratios."""
    return (
        recipe.claim("objective.surrogate", OutcomeClassifier())
        .append("selection.parts", class_balance)
        .suggest("updates.rule", GradientSteps(minibatches=4))
        .suggest("objective.kl", None)
    )


@idea(
    title="Bridging Supervised Learning and Reinforcement Learning in Math Reasoning",
    paper="arXiv 2505.18116",
    certainty=CODE,
)
def nft(recipe: Recipe) -> Recipe:
    """Likelihood of right answers, and of wrong ones under the negative policy they imply."""
    return (
        recipe.claim("advantages.estimator", SuccessRateWeight())
        .claim("objective.surrogate", NegativeAware())
        .append("selection.screens", DynamicSampling())
        .suggest("objective.aggregation", ConstantLength())
        .suggest("objective.kl", None)
    )


@idea(
    title="Random Policy Valuation is Enough for LLM Reasoning with Verifiable Rewards",
    paper="arXiv 2509.24981",
    certainty=CODE,
)
def rover(recipe: Recipe) -> Recipe:
    """Log-ratios are Q-values, regressed on reward and the value of the uniform policy."""
    return (
        recipe.claim("objective.surrogate", UniformPolicyRegression())
        .claim("objective.aggregation", token_mean)
        .suggest("advantages.estimator", group_mean_baseline)
        .suggest("objective.kl", None)
    )


@idea(
    title="Mirror Descent Policy Optimization",
    paper="arXiv 2005.09814",
    certainty="official code read, not run; ten steps per batch from memory",
)
def mdpo(recipe: Recipe) -> Recipe:
    """Many steps per batch on an unclipped ratio, with KL(new || old) as proximity term."""
    return (
        recipe.claim("objective.surrogate", ImportanceWeighted())
        .append("objective.trust_region", StepDivergence(ReverseKL(), 1.0))
        .suggest("updates.rule", GradientSteps(epochs=10))
        .suggest("advantages.estimator", GroupZScore())
        .suggest("objective.aggregation", token_mean)
    )
