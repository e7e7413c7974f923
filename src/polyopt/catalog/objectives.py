"""Losses: how the ratio is clipped, what keeps a step small, how token losses add up."""

from __future__ import annotations

from polyopt.advantages.baselines import GroupZScore, group_mean_baseline, raw_reward
from polyopt.advantages.protocol import AdvantagePart
from polyopt.divergences import ForwardKL, ReverseKL, UnnormalizedForwardKL, UnnormalizedReverseKL
from polyopt.ideas import idea
from polyopt.objectives.adaptive_clips import BalancedClip, SecondMomentClip, SecondMomentMask
from polyopt.objectives.aggregation import (
    LengthWeighted,
    sequence_mean_token_mean,
    token_mean,
)
from polyopt.objectives.covariance import ClipCov, KLCov
from polyopt.objectives.one_token import ExpectedOneTokenRollout
from polyopt.objectives.penalties import KLPenaltyAbsolute, KLPenaltyK1Plus, KLPenaltyK3Plus
from polyopt.objectives.ratios import GeometricMeanRatio, sequence_product_ratio
from polyopt.objectives.regularized import ReverseKLClip, UnnormalizedReverseKLClip
from polyopt.objectives.soft_clips import (
    DiscoveredDrift,
    GradientPreservingClip,
    LogClippedGradient,
    QuadraticSurrogate,
)
from polyopt.objectives.surrogates import (
    ClippedImportanceWeight,
    ClippedSurrogate,
    ImportanceWeighted,
)
from polyopt.objectives.trust_regions import (
    ClipMask,
    StepDivergence,
    StepDivergenceScore,
    policy_drift,
)
from polyopt.recipe import Recipe
from polyopt.rewards.kl import AdaptiveKLInReward, DivergenceInReward
from polyopt.updates.rules import GradientSteps

VERL = "framework code read and run"
OFFICIAL = "official code read and run"

KL = {"title": "Approximating KL divergence", "paper": "J. Schulman 2020", "certainty": VERL}


def on_groups(recipe: Recipe, minibatches: int = 2, credit: AdvantagePart | None = None) -> Recipe:
    """What these losses came with: group credit, token mean, no reference, several steps a batch.

    Credit, aggregation and steps that an earlier idea has brought stay.
    """
    defaults = {
        "advantages.estimator": credit or GroupZScore(),
        "objective.aggregation": token_mean,
        "updates.rule": GradientSteps(minibatches=minibatches),
    }
    for slot, value in defaults.items():
        if slot not in recipe.origins:
            recipe = recipe.suggest(slot, value)
    return recipe.suggest("objective.kl", None)


@idea("kl-abs", **KL)
def kl_abs(recipe: Recipe) -> Recipe:
    """Absolute log-ratio to the reference in the loss: a pull of constant strength."""
    return recipe.claim("objective.kl", KLPenaltyAbsolute())


@idea("k1-plus", **KL)
def kl_k1_plus(recipe: Recipe) -> Recipe:
    """k1 by value with the gradient of k2 in the loss: unbiased in both."""
    return recipe.claim("objective.kl", KLPenaltyK1Plus())


@idea("k3-plus", **KL)
def kl_k3_plus(recipe: Recipe) -> Recipe:
    """k3 by value with the gradient of k2 in the loss: the right pull, and little noise to read."""
    return recipe.claim("objective.kl", KLPenaltyK3Plus())


@idea(
    "kl-in-reward",
    title="Fine-Tuning Language Models from Human Preferences",
    paper="arXiv 1909.08593",
)
def kl_in_reward(recipe: Recipe) -> Recipe:
    """k1 penalty inside the reward, with a fixed coefficient."""
    return recipe.append("rewards.shaping", DivergenceInReward())


@idea(
    "adaptive-kl",
    title="Fine-Tuning Language Models from Human Preferences",
    paper="arXiv 1909.08593",
)
def adaptive_kl(recipe: Recipe) -> Recipe:
    """k1 penalty inside the reward, with a coefficient that steers the divergence to a target."""
    return recipe.append("rewards.shaping", AdaptiveKLInReward())


@idea(
    title="MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning Attention",
    paper="arXiv 2506.13585",
    certainty="framework code read and run; the report doesn't print its upper bound",
)
def cispo(recipe: Recipe) -> Recipe:
    """Clips the importance weight, not the update: no token loses its gradient."""
    return on_groups(recipe.claim("objective.surrogate", ClippedImportanceWeight()))


@idea(
    "cispo-masked",
    title="MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning Attention",
    paper="arXiv 2506.13585",
    certainty="the report's unified form, in a summary",
)
def cispo_masked(recipe: Recipe) -> Recipe:
    """CISPO's loss with PPO's mask: tokens past the clip range on their own side don't train."""
    masked = recipe.append("objective.trust_region", ClipMask())
    return on_groups(masked.claim("objective.surrogate", ClippedImportanceWeight()))


@idea(title="Geometric-Mean Policy Optimization", paper="arXiv 2507.20673", certainty=OFFICIAL)
def gmpo(recipe: Recipe) -> Recipe:
    """One ratio per rollout, the geometric mean of token ratios that are clipped one by one."""
    return (
        on_groups(recipe, credit=group_mean_baseline)
        .claim("objective.ratio", GeometricMeanRatio())
        .claim("objective.surrogate", ImportanceWeighted())
        .claim("objective.aggregation", sequence_mean_token_mean)
    )


@idea("product-ratio", title="Importance sampling of whole completions")
def product_ratio(recipe: Recipe) -> Recipe:
    """The exact importance ratio of a completion as one action: the product of its tokens'."""
    return recipe.claim("objective.ratio", sequence_product_ratio)


@idea(
    title="Prosperity before Collapse: How Far Can Off-Policy RL Reach with Stale Data on LLMs?",
    paper="arXiv 2510.01161, algorithm 1",
    certainty="algorithm read through Trinity-RFT's port; own implementation",
)
def m2po(recipe: Recipe) -> Recipe:
    """Masks the most moved tokens until the second moment of the log-ratio is within a budget."""
    masked = recipe.append("objective.trust_region", SecondMomentMask())
    return on_groups(masked.claim("objective.surrogate", ImportanceWeighted()), 4)


@idea(
    title="Prosperity before Collapse: How Far Can Off-Policy RL Reach with Stale Data on LLMs?",
    paper="arXiv 2510.01161",
    certainty=OFFICIAL,
)
def m2po_clip(recipe: Recipe) -> Recipe:
    """M2PO as in the released code: one clip bound per batch, set by the second moment."""
    return on_groups(recipe.claim("objective.surrogate", SecondMomentClip()), 4)


@idea(
    title="BAPO: Stabilizing Off-Policy RL for LLMs via Balanced Policy Optimization with "
    "Adaptive Clipping",
    paper="arXiv 2510.18927",
    certainty="the authors' re-implementation read and run; the paper's own algorithm not read",
)
def bapo(recipe: Recipe) -> Recipe:
    """Widens the clip range of each batch until positive advantages weigh enough in the loss."""
    return on_groups(recipe.claim("objective.surrogate", BalancedClip()), 4)


@idea(
    title="Klear-Reasoner: Advancing Reasoning Capability via Gradient-Preserving Clipping Policy "
    "Optimization",
    paper="arXiv 2508.07629",
    certainty=OFFICIAL,
)
def gppo(recipe: Recipe) -> Recipe:
    """PPO's clipped value, where clipped tokens keep a gradient of the size of the bound."""
    return on_groups(recipe.claim("objective.surrogate", GradientPreservingClip()))


ENTROPY_MECHANISM = {
    "title": "The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models",
    "paper": "arXiv 2505.22617",
    "certainty": OFFICIAL,
}


@idea("clip-cov", **ENTROPY_MECHANISM)
def clip_cov(recipe: Recipe) -> Recipe:
    """Silences a few random tokens among those that drive entropy down the most."""
    limited = recipe.append("objective.trust_region", ClipCov())
    return on_groups(limited.suggest("objective.surrogate", ClippedSurrogate(1.0, 1.0)))


@idea("kl-cov", **ENTROPY_MECHANISM)
def kl_cov(recipe: Recipe) -> Recipe:
    """Holds the tokens that drive entropy down the most near their old probability."""
    limited = recipe.append("objective.trust_region", KLCov())
    return on_groups(limited.suggest("objective.surrogate", ImportanceWeighted()))


@idea(
    title="CPGD: Toward Stable Rule-based Reinforcement Learning for Language Models",
    paper="arXiv 2505.12504",
    certainty="code of the first author's institute read and run; the paper's numbers not seen",
)
def cpgd(recipe: Recipe) -> Recipe:
    """Clips in log space with no ratio in the gradient, and adds a capped drift back to `old`."""
    limited = recipe.append("objective.trust_region", policy_drift())
    return on_groups(limited.claim("objective.surrogate", LogClippedGradient()))


@idea(
    "spo-simple", title="Simple Policy Optimization", paper="arXiv 2401.16025", certainty=OFFICIAL
)
def spo_simple(recipe: Recipe) -> Recipe:
    """A parabola in place of the clip: tokens past the range are pulled back."""
    return on_groups(recipe.claim("objective.surrogate", QuadraticSurrogate()))


@idea(
    title="Delta L Normalization: Rethink Loss Aggregation in RLVR",
    paper="arXiv 2509.07558",
    certainty=OFFICIAL,
)
def delta_l(recipe: Recipe) -> Recipe:
    """Rollouts weighted by a power of their length: the unbiased sum of least variance."""
    return (
        recipe.claim("objective.aggregation", LengthWeighted())
        .suggest("advantages.estimator", GroupZScore())
        .suggest("objective.surrogate", ClippedSurrogate(0.2, 0.3, 3.0))
        .suggest("objective.kl", None)
    )


@idea(
    title="Discovered Policy Optimisation",
    paper="arXiv 2210.05639",
    certainty="official code read; own implementation",
)
def discovered_drift(recipe: Recipe) -> Recipe:
    """The drift function that meta-learning found, in place of the clip."""
    return on_groups(recipe.claim("objective.surrogate", DiscoveredDrift()))


@idea(
    title="One-Token Rollout: Guiding Supervised Fine-Tuning of LLMs with Policy Gradient",
    paper="arXiv 2509.26313",
    certainty="objective quoted in reviews; its exact expectation, on the policy's right answers",
)
def otr(recipe: Recipe) -> Recipe:
    """Supervised tokens as one-step problems: likelihood weighted by the probability itself."""
    return (
        recipe.claim("objective.surrogate", ExpectedOneTokenRollout())
        .suggest("advantages.estimator", raw_reward)
        .suggest("objective.aggregation", token_mean)
        .suggest("objective.kl", None)
    )


RPG = {
    "title": "On the Design of KL-Regularized Policy Gradient Algorithms for LLM Reasoning",
    "paper": "arXiv 2505.17508",
}
RPG_CLIP = (0.2, 0.28, 10.0)


def _rpg(recipe: Recipe) -> Recipe:
    """RPG's credit and aggregation."""
    return on_groups(recipe, credit=group_mean_baseline)


@idea("rpg", **RPG, certainty="paper's algorithm 1; own implementation")
def rpg(recipe: Recipe) -> Recipe:
    """PPO's dual clip around advantage and reverse KL together, exact off-policy."""
    return _rpg(recipe.claim("objective.surrogate", UnnormalizedReverseKLClip()))


@idea("rpg-rkl", **RPG, certainty="paper's algorithm 1; own implementation")
def rpg_rkl(recipe: Recipe) -> Recipe:
    """The same for the normalised reverse KL."""
    return _rpg(recipe.claim("objective.surrogate", ReverseKLClip()))


@idea("rpg-fkl", **RPG, certainty=OFFICIAL)
def rpg_fkl(recipe: Recipe) -> Recipe:
    """PPO's dual clip and a separate forward KL to the old policy, as in the released runs."""
    limited = recipe.append("objective.trust_region", StepDivergence(ForwardKL()))
    return _rpg(limited.suggest("objective.surrogate", ClippedSurrogate(*RPG_CLIP)))


@idea("rpg-ufkl", **RPG, certainty=OFFICIAL)
def rpg_ufkl(recipe: Recipe) -> Recipe:
    """PPO's dual clip and a separate forward KL of measures, as in the released runs."""
    limited = recipe.append(
        "objective.trust_region", StepDivergence(UnnormalizedForwardKL(), bound=10.0)
    )
    return _rpg(limited.suggest("objective.surrogate", ClippedSurrogate(*RPG_CLIP)))


@idea("rpg-reinforce", **RPG, certainty="official code read; gradients equal its own")
def rpg_reinforce(recipe: Recipe) -> Recipe:
    """REINFORCE style: bounded weights in the KL term, and a dual clip by mask."""
    score = StepDivergenceScore(UnnormalizedReverseKL(), low=0.8, high=1.28)
    limited = recipe.append("objective.trust_region", score, ClipMask(*RPG_CLIP))
    return _rpg(limited.claim("objective.surrogate", ImportanceWeighted()))


@idea("rpg-hard-clip", **RPG, certainty=OFFICIAL)
def rpg_hard_clip(recipe: Recipe) -> Recipe:
    """REINFORCE style with the ratio bounded everywhere: CISPO's weight and a reverse KL."""
    score = StepDivergenceScore(ReverseKL(), low=0.8, high=1.28)
    limited = recipe.append("objective.trust_region", score)
    return _rpg(limited.claim("objective.surrogate", ClippedImportanceWeight(0.2, 0.28)))
