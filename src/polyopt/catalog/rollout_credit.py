"""Credit for whole rollouts: baselines, scales, outcomes and memories other than GRPO's."""

from __future__ import annotations

import math

from polyopt.advantages.baselines import GroupZScore, LeaveOneOut, group_mean_baseline
from polyopt.advantages.histories import SingleStreamBaseline, SmoothStandardisation
from polyopt.advantages.optimal_value import OptimalValueBaseline
from polyopt.advantages.reference_points import (
    AdvantageMomentum,
    ConstantBaseline,
    ForwardCorrection,
    InterpolatedQuantileBaseline,
    LengthWeightedBaseline,
    QuantileBaseline,
    VirtualRewards,
    WeightedOutcomes,
)
from polyopt.advantages.scales import (
    BatchScale,
    BetaScale,
    MixedScale,
    NoiseAwareWeight,
    PopulationZScore,
    RewardedShare,
    SignalShare,
)
from polyopt.ideas import idea
from polyopt.objectives.aggregation import (
    ConstantLength,
    sequence_mean_token_mean,
    sequence_mean_token_sum,
    token_mean,
)
from polyopt.objectives.dynamic_clip import DynamicClip
from polyopt.objectives.surrogates import ClippedSurrogate, PolicyGradient
from polyopt.prompts.beliefs import UncertainFirst
from polyopt.prompts.reference_values import NotMastered
from polyopt.recipe import Recipe
from polyopt.replay.previous_visit import PreviousVisit
from polyopt.rewards.noise import BackwardCorrection
from polyopt.rewards.policy_drift import previous_drift
from polyopt.rollouts.reference import ReferenceRollouts
from polyopt.selection.outcomes import Unsolved, only_right, only_wrong
from polyopt.selection.unscored import drop_unscored

OFFICIAL = "official code read and run"


@idea(
    title="On-Policy RL with Optimal Reward Baseline",
    paper="arXiv 2505.23585",
    certainty="official port read and run; defaults from memory",
)
def opo(recipe: Recipe) -> Recipe:
    """Baseline weighted by length, the one of least variance; strictly on-policy."""
    return (
        recipe.claim("advantages.estimator", LengthWeightedBaseline())
        .suggest("objective.surrogate", PolicyGradient())
        .suggest("objective.aggregation", token_mean)
        .suggest("objective.kl", None)
    )


GPG = {
    "title": "GPG: A Simple and Strong Reinforcement Learning Baseline for Model Reasoning",
    "paper": "arXiv 2504.02546",
}


@idea(**GPG, certainty="official code read; alpha is an own version of its distributed code")
def gpg(recipe: Recipe) -> Recipe:
    """Centred rewards, scaled up by what silent groups take away; plain policy gradient."""
    return _gpg(recipe).append("advantages.shaping", SignalShare())


@idea("gpg-verl", **GPG, certainty="port read and run; its alpha isn't the paper's")
def gpg_verl(recipe: Recipe) -> Recipe:
    """GPG as verl has it: scaled up by the share of rollouts without reward."""
    return _gpg(recipe).append("advantages.shaping", RewardedShare())


def _gpg(recipe: Recipe) -> Recipe:
    return (
        recipe.claim("advantages.estimator", group_mean_baseline)
        .suggest("objective.surrogate", PolicyGradient())
        .suggest("objective.aggregation", sequence_mean_token_mean)
        .suggest("objective.kl", None)
    )


@idea(
    "lite-ppo",
    title="Part I: Tricks or Traps? A Deep Dive into RL for LLM Reasoning",
    paper="arXiv 2508.08221",
    certainty=OFFICIAL,
)
def lite_ppo(recipe: Recipe) -> Recipe:
    """Two tricks on vanilla PPO loss: group mean with batch deviation, and token-level loss."""
    return (
        recipe.claim("advantages.estimator", BatchScale())
        .claim("objective.aggregation", token_mean)
        .suggest("objective.surrogate", ClippedSurrogate(0.2, 0.2))
        .suggest("objective.kl", None)
    )


QAE = {
    "title": "Quantile Advantage Estimation for Entropy-Safe Reasoning",
    "paper": "arXiv 2509.22611",
}


@idea(**QAE, certainty="paper's rule; official code's lines, which interpolate, are qae-linear")
def qae(recipe: Recipe) -> Recipe:
    """The group's quantile as baseline: hard prompts credit successes, easy ones blame failures."""
    return _clip_higher(recipe.claim("advantages.estimator", QuantileBaseline()))


@idea("qae-linear", **QAE, certainty="official lines read and run")
def qae_linear(recipe: Recipe) -> Recipe:
    """QAE as its authors' code has it: the quantile is interpolated between rewards."""
    return _clip_higher(recipe.claim("advantages.estimator", InterpolatedQuantileBaseline()))


def _clip_higher(recipe: Recipe) -> Recipe:
    """DAPO's clip range and loss, which several of these methods come with."""
    return (
        recipe.suggest("objective.surrogate", ClippedSurrogate(0.2, 0.28))
        .suggest("objective.aggregation", token_mean)
        .suggest("objective.kl", None)
    )


@idea(
    title="BNPO: Beta Normalization Policy Optimization",
    paper="arXiv 2506.02864",
    certainty=OFFICIAL,
)
def bnpo(recipe: Recipe) -> Recipe:
    """Centred rewards over a Beta density fitted to the success rates of the batch."""
    return (
        recipe.claim("advantages.estimator", BetaScale())
        .suggest("objective.surrogate", ClippedSurrogate(0.2, 0.28, dual_clip=10.0))
        .suggest("objective.aggregation", sequence_mean_token_sum)
        .suggest("objective.kl", None)
    )


@idea(
    title="MAPO: Mixed Advantage Policy Optimization", paper="arXiv 2509.18849", certainty=OFFICIAL
)
def mapo(recipe: Recipe) -> Recipe:
    """Z-score for uncertain prompts, percentage from the mean for certain ones."""
    return (
        recipe.claim("advantages.estimator", MixedScale())
        .suggest("objective.surrogate", ClippedSurrogate(0.2, 0.2))
        .suggest("objective.aggregation", sequence_mean_token_mean)
    )


@idea(
    title="PVPO: Pre-Estimated Value-Based Policy Optimization for Agentic Reasoning",
    paper="arXiv 2508.21104",
    certainty="equation from summaries of the paper; no code found",
)
def pvpo(recipe: Recipe) -> Recipe:
    """The reference policy's mean reward on the prompt, measured beforehand, as baseline."""
    return (
        recipe.claim("advantages.estimator", OptimalValueBaseline(math.inf))
        .append("prompts.filters", NotMastered())
        .suggest("objective.surrogate", ClippedSurrogate(0.2, 0.2))
        .suggest("objective.aggregation", sequence_mean_token_mean)
    )


@idea(
    title="AAPO: Enhancing the Reasoning Capabilities of LLMs with Advantage Momentum",
    paper="arXiv 2505.14264",
    certainty=OFFICIAL,
)
def aapo(recipe: Recipe) -> Recipe:
    """Adds to the z-score the lead over a completion of the reference policy; no ratio, no clip."""
    return (
        recipe.append("advantages.shaping", AdvantageMomentum())
        .append("rollouts.measurements", ReferenceRollouts())
        .suggest("advantages.estimator", GroupZScore(1e-4))
        .claim("objective.surrogate", PolicyGradient())
        .suggest("objective.aggregation", token_mean)
        .suggest("objective.kl", None)
    )


@idea(
    title="NGRPO: Negative-enhanced Group Relative Policy Optimization",
    paper="arXiv 2509.18851",
    certainty=OFFICIAL,
)
def ngrpo(recipe: Recipe) -> Recipe:
    """An imagined success in every group, so that groups that failed altogether teach; own clip."""
    return (
        recipe.claim("advantages.estimator", VirtualRewards())
        .claim("objective.surrogate", ClippedSurrogate(0.16, 0.24))
        .append("selection.screens", Unsolved())
        .suggest("objective.aggregation", token_mean)
        .suggest("objective.kl", None)
    )


@idea(
    "two-grpo",
    title="It Takes Two: Your GRPO Is Secretly DPO",
    paper="arXiv 2510.00977",
    certainty="reconstructed from abstract and reviews; divisor of the deviation unknown",
)
def two_grpo(recipe: Recipe) -> Recipe:
    """GRPO with two rollouts a prompt: plus one for the better, minus one for the worse."""
    return (
        recipe.claim("rollouts.per_prompt", 2)
        .claim("advantages.estimator", PopulationZScore())
        .suggest("objective.surrogate", ClippedSurrogate(0.2, 0.2))
        .suggest("objective.aggregation", sequence_mean_token_mean)
    )


OUTCOMES = {
    "title": "The Surprising Effectiveness of Negative Reinforcement in LLM Reasoning",
    "paper": "arXiv 2506.01347",
    "certainty": OFFICIAL,
}


@idea("psr-nsr", **OUTCOMES)
def psr_nsr(recipe: Recipe) -> Recipe:
    """W-REINFORCE: failures weigh -1, successes 0.1, no baseline."""
    return _outcomes(recipe.claim("advantages.estimator", WeightedOutcomes()))


@idea(**OUTCOMES)
def psr(recipe: Recipe) -> Recipe:
    """Positive sample reinforcement: only right rollouts train, at +1."""
    claimed = recipe.claim("advantages.estimator", ConstantBaseline(0.0))
    return _outcomes(claimed.append("selection.screens", only_right))


@idea(**OUTCOMES)
def nsr(recipe: Recipe) -> Recipe:
    """Negative sample reinforcement: only wrong rollouts train, at -1."""
    claimed = recipe.claim("advantages.estimator", ConstantBaseline(1.0))
    return _outcomes(claimed.append("selection.screens", only_wrong))


def _outcomes(recipe: Recipe) -> Recipe:
    return (
        recipe.suggest("objective.surrogate", ClippedSurrogate(0.2, 0.2))
        .suggest("objective.aggregation", token_mean)
        .suggest("objective.kl", None)
    )


@idea(
    "s-grpo-noise",
    title="Mitigating Think-Answer Mismatch in LLM Reasoning Through Noise-Aware Advantage "
    "Reweighting",
    paper="arXiv 2508.05928",
    certainty=OFFICIAL,
)
def s_grpo_noise(recipe: Recipe) -> Recipe:
    """Weighs each group by how much of its z-score survives rewards that are sometimes flipped."""
    return (
        recipe.append("advantages.shaping", NoiseAwareWeight())
        .suggest("advantages.estimator", GroupZScore(1e-8))
        .suggest("objective.surrogate", ClippedSurrogate(0.2, 0.2))
        .suggest("objective.aggregation", ConstantLength())
        .suggest("objective.kl", None)
    )


@idea(
    "spo-single-stream",
    title="Single-stream Policy Optimization",
    paper="arXiv 2509.13232",
    certainty="official code read, its lines run; drift measured before the update, not after",
)
def spo_single_stream(recipe: Recipe) -> Recipe:
    """One rollout a prompt against a tracked success rate, uncertain prompts first; no groups."""
    return (
        recipe.claim("rollouts.per_prompt", 1)
        .claim("advantages.estimator", SingleStreamBaseline())
        .claim("replay.buffer", PreviousVisit())
        .append("rewards.shaping", previous_drift)
        .append("selection.parts", drop_unscored)
        .append("prompts.filters", UncertainFirst())
        .suggest("objective.surrogate", ClippedSurrogate(0.2, 0.28, dual_clip=10.0))
        .suggest("objective.aggregation", token_mean)
        .suggest("objective.kl", None)
    )


@idea(
    title="DCPO: Dynamic Clipping Policy Optimization",
    paper="arXiv 2509.02333",
    certainty="official code read and run; aggregation as in its code",
)
def dcpo(recipe: Recipe) -> Recipe:
    """z-scores smoothed over a prompt's visits; a clip range for each token by its probability."""
    return (
        recipe.claim("advantages.estimator", SmoothStandardisation())
        .claim("objective.surrogate", DynamicClip())
        .suggest("objective.aggregation", token_mean)
        .suggest("objective.kl", None)
    )


NOISY = {
    "title": "Reinforcement Learning with Verifiable yet Noisy Rewards under Imperfect Verifiers",
    "paper": "arXiv 2510.00915",
    "certainty": "paper's sections 3, A and B read; appendix B, which its algorithm 3 contradicts",
}


@idea("noisy-verifier", **NOISY)
def noisy_verifier(recipe: Recipe) -> Recipe:
    """Forward correction: credit with mean 0 over right answers, whatever the verifier rejects."""
    return _noisy(recipe.claim("advantages.estimator", ForwardCorrection()))


@idea("noisy-verifier-backward", **NOISY)
def noisy_verifier_backward(recipe: Recipe) -> Recipe:
    """Backward correction: rewards unbiased for the truth, against the others' mean."""
    claimed = recipe.claim("advantages.estimator", LeaveOneOut())
    return _noisy(claimed.append("rewards.shaping", BackwardCorrection()))


def _noisy(recipe: Recipe) -> Recipe:
    return recipe.suggest("objective.surrogate", ClippedSurrogate(0.2, 0.2)).suggest(
        "objective.aggregation", sequence_mean_token_mean
    )
