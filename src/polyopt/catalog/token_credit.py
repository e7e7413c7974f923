"""Credit for tokens, segments, turns, steps and trees: finer than one number a rollout."""

from __future__ import annotations

from polyopt.advantages.baselines import GroupZScore, group_mean_baseline
from polyopt.advantages.effective_rank import RankVelocity
from polyopt.advantages.entropy_weights import (
    BoundedAdvantage,
    ConfidenceScale,
    EntropyGate,
    EntropyWeightedRollouts,
    EntropyWeightedTokens,
)
from polyopt.advantages.module_calls import ModuleCallZScore
from polyopt.advantages.planning import PlanningTokens
from polyopt.advantages.prefix_trees import BranchCredit, next_token_gain
from polyopt.advantages.scopes import (
    AgentTurnZScore,
    IntraTree,
    OwnVariant,
    RescoreByTree,
    TreeZScore,
)
from polyopt.advantages.segment_trees import (
    SiblingBernoulliScore,
    SiblingZScore,
    sibling_baseline,
)
from polyopt.advantages.segments import ChoicesOnly, ThoughtCredit, segment_gain
from polyopt.advantages.staged_prefixes import (
    StagedExpectation,
    StagedOptimism,
    StagedPessimism,
    StagedProjection,
)
from polyopt.advantages.steps import AnchorStates, EpisodeByStep, SharedSteps
from polyopt.advantages.tool_calls import EarlyCall
from polyopt.advantages.turns import TurnCredit
from polyopt.ideas import idea
from polyopt.objectives.aggregation import sequence_mean_token_mean, token_mean
from polyopt.objectives.mean_ratio import arithmetic_sequence_ratio
from polyopt.objectives.penalties import KLPenaltyK3
from polyopt.objectives.prefixes import PerDistinctPrefix, probability_gain
from polyopt.objectives.surrogates import ClippedSurrogate, PolicyGradient
from polyopt.recipe import Recipe
from polyopt.rewards.team import TeamReward
from polyopt.rollouts.cutpoints import CutpointSampling
from polyopt.rollouts.forks import EntropyForkSampling, RandomForkSampling
from polyopt.rollouts.segment_trees import SegmentTreeSampling
from polyopt.selection.conflicts import ConflictWeights
from polyopt.selection.information import InformationWeights
from polyopt.selection.module_calls import aligned_calls
from polyopt.selection.prefix_tokens import first_of_each_branch, share_prefixes
from polyopt.selection.uncertain_tokens import ProbabilityMask, RandomTokens

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
    title="SALT: Step-level Advantage Assignment for Long-horizon Agents via Trajectory Graph",
    paper="arXiv 2510.20022",
    certainty="reconstruction from the abstract; merge rule and history length uncertain",
)
def salt(recipe: Recipe) -> Recipe:
    """Steps that several rollouts share get the mean of their credit. Needs environment steps."""
    return recipe.append("advantages.shaping", SharedSteps()).suggest(
        "advantages.estimator", GroupZScore()
    )


@idea(
    title="Group-in-Group Policy Optimization for LLM Agent Training",
    paper="arXiv 2505.10978",
    certainty="official code read in a fork, its functions run",
)
def gigpo(recipe: Recipe) -> Recipe:
    """Also compares the steps that were taken from one state. Needs environment steps."""
    return clipped(
        recipe.append("advantages.shaping", AnchorStates()).suggest(
            "advantages.estimator", EpisodeByStep()
        )
    )


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


@idea(**TREE_OPO)
def tree_opo(recipe: Recipe) -> Recipe:
    """Takes half of a prefix's mean reward off, where completions start from many prefixes."""
    return like_grpo(recipe.claim("advantages.estimator", StagedExpectation()))


@idea(**TREE_OPO)
def tree_opo_optimistic(recipe: Recipe) -> Recipe:
    """tree-opo with the best reward reached from the prefix."""
    return like_grpo(recipe.claim("advantages.estimator", StagedOptimism()))


@idea(**TREE_OPO)
def tree_opo_pessimistic(recipe: Recipe) -> Recipe:
    """tree-opo with the worst reward reached from the prefix."""
    return like_grpo(recipe.claim("advantages.estimator", StagedPessimism()))


@idea(**TREE_OPO)
def tree_opo_sae(recipe: Recipe) -> Recipe:
    """tree-opo by projection: the closest centred rewards that respect the order of the tree."""
    return like_grpo(recipe.claim("advantages.estimator", StagedProjection()))


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


@idea(
    title="Reinforcing Multi-Turn Reasoning in LLM Agents via Turn-Level Credit Assignment",
    paper="arXiv 2505.11821",
    certainty=READ,
)
def turn_level_credit(recipe: Recipe) -> Recipe:
    """MT-GRPO: the tool call's reward for the turn that called, the outcome's for all turns."""
    return clipped(recipe.claim("advantages.estimator", TurnCredit()))


@idea(
    title="Stronger Together: On-Policy Reinforcement Learning for Collaborative LLMs",
    paper="arXiv 2510.11062",
    certainty="official code read; its grouping run; the reward mix from memory",
)
def at_grpo(recipe: Recipe) -> Recipe:
    """Groups are the actions of one agent at one turn; the team's reward joins the agent's."""
    return clipped(
        recipe.claim("advantages.estimator", AgentTurnZScore()).append(
            "rewards.shaping", TeamReward()
        )
    )


@idea(
    title="Multi-module GRPO: Composing Policy Gradients and Prompt Optimization for Language "
    "Model Programs",
    paper="arXiv 2508.04660",
    certainty="official code read; grouping and credit re-implemented",
)
def mmgrpo(recipe: Recipe) -> Recipe:
    """Groups are the k-th calls of one module in the rollouts of a program."""
    return like_grpo(
        recipe.claim("advantages.estimator", ModuleCallZScore()).append(
            "selection.screens", aligned_calls
        )
    )


@idea(
    title="Emergent Hierarchical Reasoning in LLMs through Reinforcement Learning",
    paper="arXiv 2509.03646",
    certainty="paper's equation read; the list of grams is yours to mine",
)
def hicra(recipe: Recipe) -> Recipe:
    """More credit for planning tokens: set advantages.planning_tokens.grams for your tokenizer."""
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


@idea(
    title="R1-ShareVL: Incentivizing Reasoning Capability of MLLMs via Share-GRPO",
    paper="arXiv 2505.16673",
    certainty=READ,
)
def share_grpo(recipe: Recipe) -> Recipe:
    """Responses train under all variants of a question; compared across and within variants."""
    return clipped(
        recipe.append("advantages.shaping", OwnVariant()).suggest(
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


@idea(
    title="Beyond the Exploration-Exploitation Trade-off: A Hidden State Approach for LLM "
    "Reasoning in RLVR",
    paper="arXiv 2509.23808",
    certainty="official code read, its measures run; the shaping transcribed",
)
def verl_effective_rank(recipe: Recipe) -> Recipe:
    """A bonus for completions whose hidden states explore or settle faster than usual."""
    return recipe.append("advantages.shaping", RankVelocity()).suggest(
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


@idea(
    title="Understanding Tool-Integrated Reasoning",
    paper="arXiv 2508.19201",
    certainty="paper's equation read; delta and k from a third party's recipe that cites it",
)
def aspo_tool(recipe: Recipe) -> Recipe:
    """More credit for right rollouts that call a tool earlier than the group's other right ones."""
    return recipe.append("advantages.shaping", EarlyCall()).suggest(
        "advantages.estimator", GroupZScore()
    )
