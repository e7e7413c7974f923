"""Credit for tokens and segments: finer than one number a rollout."""

from __future__ import annotations

from polyopt.advantages.baselines import GroupZScore, group_mean_baseline
from polyopt.advantages.effective_rank import RankVelocity, RankVelocityAtEnd
from polyopt.advantages.entropy_weights import (
    BoundedAdvantage,
    ConfidenceScale,
    EntropyGate,
    EntropyWeightedRollouts,
    EntropyWeightedTokens,
)
from polyopt.advantages.planning import PlanningTokens
from polyopt.advantages.prefix_trees import BranchCredit, next_token_gain
from polyopt.advantages.segments import ThoughtCredit
from polyopt.ideas import idea
from polyopt.objectives.aggregation import sequence_mean_token_mean, token_mean
from polyopt.objectives.mean_ratio import arithmetic_sequence_ratio
from polyopt.objectives.penalties import KLPenaltyK3
from polyopt.objectives.prefixes import PerDistinctPrefix, probability_gain
from polyopt.objectives.surrogates import ClippedSurrogate, PolicyGradient
from polyopt.recipe import Recipe
from polyopt.rollouts.forks import EntropyForkSampling
from polyopt.selection.conflicts import ConflictWeights
from polyopt.selection.information import InformationWeights
from polyopt.selection.prefix_tokens import first_of_each_branch, share_prefixes
from polyopt.selection.uncertain_tokens import RandomTokens

READ = "official code read and run"


SECONDARY = "secondary descriptions, not the paper's text; what they lack is ours"


def clipped(recipe: Recipe, low: float = 0.2, high: float = 0.2) -> Recipe:
    """PPO's clip with one mean over all tokens, as a suggestion."""
    return recipe.suggest("objective.surrogate", ClippedSurrogate(low, high)).suggest(
        "objective.aggregation", token_mean
    )


def like_grpo(recipe: Recipe) -> Recipe:
    """GRPO's clip, mean over rollouts and k3 penalty, as a suggestion."""
    return (
        recipe.suggest("objective.surrogate", ClippedSurrogate(0.2, 0.2))
        .suggest("objective.aggregation", sequence_mean_token_mean)
        .suggest("objective.kl", KLPenaltyK3(0.04))
    )


GTPO_ENTROPY = {
    "title": "GTPO and GRPO-S: Token and Sequence-Level Reward Shaping with Policy Entropy",
    "paper": "arXiv 2508.04349",
    "certainty": "reconstruction from the abstract and a third party's tests of its equations",
}


@idea(**GTPO_ENTROPY)
def gtpo_entropy(recipe: Recipe) -> Recipe:
    """Rewards doubt where it led to success, punishes confidence where it led to failure."""
    return clipped(recipe.claim("advantages.estimator", EntropyWeightedTokens()), 0.2, 0.28)


@idea(**GTPO_ENTROPY)
def grpo_s(recipe: Recipe) -> Recipe:
    """gtpo-entropy for whole rollouts: mean entropies, and the mean of the tokens' ratios."""
    return (
        recipe.claim("advantages.estimator", EntropyWeightedRollouts())
        .claim("objective.ratio", arithmetic_sequence_ratio)
        .suggest("objective.surrogate", ClippedSurrogate(0.2, 0.28))
        .suggest("objective.aggregation", sequence_mean_token_mean)
    )


@idea(
    title="GTPO: Stabilizing Group Relative Policy Optimization via Gradient and Entropy Control",
    paper="arXiv 2508.03772",
    certainty=READ,
)
def gtpo_trajectory(recipe: Recipe) -> Recipe:
    """Spares tokens that good and bad completions share, and leaves out unsure completions."""
    return (
        recipe.claim("advantages.estimator", group_mean_baseline)
        .append("advantages.shaping", EntropyGate())
        .append("selection.parts", ConflictWeights())
        .suggest("objective.surrogate", PolicyGradient())
        .suggest("objective.aggregation", sequence_mean_token_mean)
        .suggest("objective.kl", None)
    )


@idea(
    title="Exploiting Tree Structure for Credit Assignment in RL Training of LLMs",
    paper="arXiv 2509.18314",
    certainty="abstract and summaries; equation from memory, eps and deviation ours",
)
def tempo(recipe: Recipe) -> Recipe:
    """Adds what each token changes in the mean reward of the completions that share its prefix."""
    return clipped(
        recipe.append("advantages.shaping", BranchCredit()).suggest(
            "advantages.estimator", GroupZScore()
        )
    )


@idea(
    title="Emergent Hierarchical Reasoning in LLMs through Reinforcement Learning",
    paper="arXiv 2509.03646",
    certainty="paper's equation read; the list of grams is yours to mine",
)
def hicra(recipe: Recipe) -> Recipe:
    """More credit for planning tokens, once they are known.

    Without grams it is GRPO. They depend on the tokenizer: write an idea of your own that appends
    `PlanningTokens(grams=...)` with those that you mined.
    """
    return (
        recipe.append("advantages.shaping", PlanningTokens())
        .suggest("advantages.estimator", GroupZScore())
        .suggest("objective.surrogate", ClippedSurrogate(0.2, 0.28))
    )


@idea(
    title="GRPO is Secretly a Process Reward Model",
    paper="arXiv 2509.21154",
    certainty="official code read, its weights run",
)
def lambda_grpo_prm(recipe: Recipe) -> Recipe:
    """k completions that share a prefix weigh as one there, in the loss and in the penalty."""
    return (
        recipe.append("selection.parts", share_prefixes)
        .claim("objective.aggregation", PerDistinctPrefix())
        .suggest("advantages.estimator", GroupZScore(1e-4))
        .suggest("objective.surrogate", ClippedSurrogate(0.2, 0.2))
        .suggest("objective.kl", KLPenaltyK3(0.04))
    )


@idea(
    title="Good Learners Think Their Thinking: Generative PRM Makes Large Reasoning Model More "
    "Efficient Math Learner",
    paper="arXiv 2507.23317",
    certainty=SECONDARY,
)
def tp_grpo(recipe: Recipe) -> Recipe:
    """A judge's verdicts on steps, merged into thoughts, correct the outcome's credit."""
    return like_grpo(
        recipe.append("advantages.shaping", ThoughtCredit()).suggest(
            "advantages.estimator", GroupZScore()
        )
    )


TOKEN_EFFICIENT = {
    "title": "Token-Efficient RL for LLM Reasoning",
    "paper": "arXiv 2504.20834",
    "certainty": "abstract only; objective from memory, cutoff and share ours",
}


@idea(**TOKEN_EFFICIENT)
def t_spmo(recipe: Recipe) -> Recipe:
    """Trains each token at which completions part once, by the mean rewards beyond it."""
    return (
        recipe.claim("advantages.estimator", next_token_gain)
        .append("selection.parts", first_of_each_branch)
        .claim("objective.surrogate", probability_gain)
        .claim("objective.aggregation", token_mean)
        .suggest("objective.kl", None)
    )


@idea(**TOKEN_EFFICIENT)
def s_grpo_subset(recipe: Recipe) -> Recipe:
    """S-GRPO: trains the first tokens and a random share of the later ones."""
    return clipped(
        recipe.append("selection.parts", RandomTokens()).suggest(
            "advantages.estimator", GroupZScore()
        )
    )


VERL = {
    "title": "Beyond the Exploration-Exploitation Trade-off: A Hidden State Approach for LLM "
    "Reasoning in RLVR",
    "paper": "arXiv 2509.23808",
    "certainty": "official code read, its measures run; the shaping transcribed",
}


@idea(**VERL)
def verl_effective_rank(recipe: Recipe) -> Recipe:
    """A bonus for completions whose hidden states explore or settle faster than usual."""
    return recipe.append("advantages.shaping", RankVelocity()).suggest(
        "advantages.estimator", GroupZScore()
    )


@idea(**VERL)
def verl_effective_rank_at_end(recipe: Recipe) -> Recipe:
    """verl-effective-rank with the bonus on the last token only, as the authors run it."""
    return recipe.append("advantages.shaping", RankVelocityAtEnd()).suggest(
        "advantages.estimator", GroupZScore()
    )


@idea(
    title="Reinforcing Video Reasoning with Focused Thinking",
    paper="arXiv 2505.24718",
    certainty="official code read, its weights run; the loss transcribed",
)
def tw_grpo(recipe: Recipe) -> Recipe:
    """Weighs the places at which the completions of a prompt would go on differently."""
    return clipped(
        recipe.append("selection.parts", InformationWeights()).suggest(
            "advantages.estimator", GroupZScore(1e-4)
        )
    )


ETTRL = {
    "title": "ETTRL: Balancing Exploration and Exploitation in LLM Test-Time Reinforcement "
    "Learning Via Entropy Mechanism",
    "paper": "arXiv 2508.11356",
    "certainty": "abstract and three agreeing secondary notes",
}


@idea(**ETTRL)
def ear_etmr(recipe: Recipe) -> Recipe:
    """Rollouts fork where the policy is unsure; sure ones count more. Votes are ttrl's."""
    return (
        recipe.claim("rollouts.sampler", EntropyForkSampling())
        .append("advantages.shaping", ConfidenceScale())
        .suggest("advantages.estimator", GroupZScore())
    )


@idea(**ETTRL)
def ear(recipe: Recipe) -> Recipe:
    """Sure completions count more, unsure ones less."""
    return recipe.append("advantages.shaping", ConfidenceScale()).suggest(
        "advantages.estimator", GroupZScore()
    )


@idea(**ETTRL)
def ear_clip(recipe: Recipe) -> Recipe:
    """EAR's simpler variant: bounded advantages."""
    return recipe.append("advantages.shaping", BoundedAdvantage()).suggest(
        "advantages.estimator", GroupZScore()
    )
