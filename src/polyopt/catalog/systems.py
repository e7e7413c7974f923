"""Whole algorithms: an estimator of credit with the objective it was published with.

A system claims what it is about and only suggests the rest, so `rloo+dapo` is RLOO's credit in
DAPO's loop. Learning rates and sizes of the papers' runs are no part of an idea: set them for your
model (`--lr`, `--prompts`, ...).
"""

from __future__ import annotations

from polyopt.advantages.baselines import (
    GroupZScore,
    LeaveOneOut,
    WhitenedReturn,
    greedy_baseline,
    group_mean_baseline,
    raw_reward,
    whitened_group_mean,
)
from polyopt.advantages.values import GeneralizedAdvantage, Whiten
from polyopt.ideas import idea
from polyopt.objectives.aggregation import (
    ConstantLength,
    sequence_mean_token_mean,
    sequence_mean_token_sum,
    token_mean,
)
from polyopt.objectives.penalties import ClippedValueLoss, KLPenaltyK2, KLPenaltyK3
from polyopt.objectives.ratios import sequence_ratio, sequence_token_ratio
from polyopt.objectives.surrogates import ClippedSurrogate, PolicyGradient
from polyopt.recipe import Recipe
from polyopt.rewards.shaping import KLInReward, SoftOverlong
from polyopt.rollouts.greedy import GreedyBaseline
from polyopt.selection.screens import DynamicSampling
from polyopt.updates.rules import GradientSteps


@idea(title="Simple statistical gradient-following algorithms", paper="Williams 1992")
def reinforce(recipe: Recipe) -> Recipe:
    """The reward itself as credit, score-function gradient, no baseline."""
    return (
        recipe.claim("advantages.estimator", raw_reward)
        .suggest("objective.surrogate", PolicyGradient())
        .suggest("objective.aggregation", sequence_mean_token_sum)
    )


@idea(
    title="DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models",
    paper="arXiv 2402.03300",
    certainty="paper's equations; reference port read and run",
)
def grpo(recipe: Recipe) -> Recipe:
    """Credit is the reward's z-score within its prompt's group; clipped ratio, k3 penalty."""
    return (
        recipe.claim("advantages.estimator", GroupZScore())
        .suggest("objective.surrogate", ClippedSurrogate(0.2, 0.2))
        .suggest("objective.aggregation", sequence_mean_token_mean)
        .suggest("objective.kl", KLPenaltyK3(0.04))
    )


@idea(
    title="Understanding R1-Zero-Like Training: A Critical Perspective",
    paper="arXiv 2503.20783",
    certainty="official code read and run",
)
def dr_grpo(recipe: Recipe) -> Recipe:
    """GRPO without its two biases: no division by the deviation, constant length in the loss."""
    return (
        recipe.claim("advantages.estimator", group_mean_baseline)
        .claim("objective.aggregation", ConstantLength())
        .suggest("objective.surrogate", ClippedSurrogate(0.2, 0.2))
        .suggest("objective.kl", None)
    )


@idea(
    title="Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human "
    "Feedback",
    paper="arXiv 2402.14740",
    certainty="reference port read and run; defaults from memory",
)
def rloo(recipe: Recipe) -> Recipe:
    """The mean reward of the prompt's other rollouts as baseline; a completion is one action."""
    return (
        recipe.claim("advantages.estimator", LeaveOneOut())
        .suggest("objective.surrogate", PolicyGradient())
        .suggest("objective.aggregation", sequence_mean_token_sum)
    )


@idea(
    title="ReMax: A Simple, Effective, and Efficient Reinforcement Learning Method",
    paper="arXiv 2310.10505",
    certainty="reference port read and run; KL coefficient from memory",
)
def remax(recipe: Recipe) -> Recipe:
    """The reward of the prompt's greedy completion as baseline: one extra rollout a prompt."""
    return (
        recipe.claim("advantages.estimator", greedy_baseline)
        .append("rollouts.measurements", GreedyBaseline())
        .suggest("objective.surrogate", PolicyGradient())
        .suggest("objective.aggregation", token_mean)
    )


@idea(
    "reinforce++",
    title="REINFORCE++: Stabilizing Critic-Free Policy Optimization with Global Advantage "
    "Normalization",
    paper="arXiv 2501.03262",
    certainty="reference port read and run; coefficients partly from memory",
)
def reinforce_plus_plus(recipe: Recipe) -> Recipe:
    """Returns whitened over the batch's tokens; k1 penalty inside the reward; clipped ratio."""
    return (
        recipe.claim("advantages.estimator", WhitenedReturn())
        .append("rewards.shaping", KLInReward(0.01))
        .suggest("objective.surrogate", ClippedSurrogate(0.2, 0.2))
        .suggest("objective.aggregation", token_mean)
    )


@idea(
    "reinforce++-baseline",
    title="REINFORCE++: Stabilizing Critic-Free Policy Optimization with Global Advantage "
    "Normalization",
    paper="arXiv 2501.03262",
    certainty="reference port read and run; coefficients partly from memory",
)
def reinforce_plus_plus_baseline(recipe: Recipe) -> Recipe:
    """Group mean as baseline, whitened over the batch's tokens; k2 penalty in the loss."""
    return (
        recipe.claim("advantages.estimator", whitened_group_mean)
        .suggest("objective.kl", KLPenaltyK2(0.001))
        .suggest("objective.surrogate", ClippedSurrogate(0.2, 0.2))
        .suggest("objective.aggregation", token_mean)
    )


@idea(
    title="Group Sequence Policy Optimization",
    paper="arXiv 2507.18071",
    certainty="paper's equations; framework port read and run",
)
def gspo(recipe: Recipe) -> Recipe:
    """One ratio per rollout, the geometric mean of its tokens', and a clip range to match."""
    return (
        recipe.claim("objective.ratio", sequence_ratio)
        .claim("objective.surrogate", ClippedSurrogate(3e-4, 4e-4))
        .claim("objective.aggregation", sequence_mean_token_mean)
        .suggest("advantages.estimator", GroupZScore())
        .suggest("updates.rule", GradientSteps(minibatches=4))
        .suggest("objective.kl", None)
    )


@idea(
    title="Group Sequence Policy Optimization",
    paper="arXiv 2507.18071, section 4.3",
    certainty="paper's equations; framework port read and run",
)
def gspo_token(recipe: Recipe) -> Recipe:
    """GSPO for credit that differs from token to token: sequence ratio, each token's gradient."""
    return (
        recipe.claim("objective.ratio", sequence_token_ratio)
        .claim("objective.surrogate", ClippedSurrogate(3e-4, 4e-4))
        .claim("objective.aggregation", sequence_mean_token_mean)
        .suggest("advantages.estimator", GroupZScore())
        .suggest("updates.rule", GradientSteps(minibatches=4))
        .suggest("objective.kl", None)
    )


@idea(
    title="DAPO: An Open-Source LLM Reinforcement Learning System at Scale",
    paper="arXiv 2503.14476",
    certainty="official code read and run",
)
def dapo(recipe: Recipe) -> Recipe:
    """Clip-higher, dynamic sampling with refill, token-level loss, soft overlong punishment."""
    return (
        recipe.claim("objective.surrogate", ClippedSurrogate(0.2, 0.28))
        .claim("objective.aggregation", token_mean)
        .append("selection.screens", DynamicSampling())
        .append("rewards.shaping", SoftOverlong())
        .suggest("advantages.estimator", GroupZScore())
        .suggest("objective.kl", None)
    )


@idea(
    title="Proximal Policy Optimization Algorithms",
    paper="arXiv 1707.06347, with GAE (arXiv 1506.02438)",
    certainty="papers' equations; reference port read and run; coefficients common practice",
)
def ppo(recipe: Recipe) -> Recipe:
    """Value head and generalized advantages, whitened; clipped ratio over two minibatches."""
    return (
        recipe.claim("advantages.estimator", GeneralizedAdvantage())
        .append("advantages.shaping", Whiten())
        .claim("objective.value", ClippedValueLoss())
        .suggest("objective.surrogate", ClippedSurrogate(0.2, 0.2))
        .suggest("objective.aggregation", token_mean)
        .append("rewards.shaping", KLInReward(0.01))
        .suggest("updates.rule", GradientSteps(minibatches=2))
    )
