"""Objectives that mix sources: stale rollouts, teachers, demonstrations, hints, entropy."""

from __future__ import annotations

import math

from polyopt.advantages.baselines import GroupZScore, group_mean_baseline
from polyopt.advantages.off_policy import (
    Damped,
    ExponentialWeight,
    ShiftedMeanBaseline,
    SoftMeanBaseline,
)
from polyopt.advantages.own_rollouts import OwnMeanBaseline, OwnZScore
from polyopt.advantages.scales import PopulationZScore
from polyopt.advantages.supervised import MixedGroupReward, every_rollout, positive_reward
from polyopt.advantages.token_groups import TokenGroupAverage
from polyopt.divergences import K2
from polyopt.ideas import idea
from polyopt.objectives.aggregation import (
    ConstantLength,
    sequence_mean_token_mean,
    sequence_mean_token_sum,
    token_mean,
)
from polyopt.objectives.demonstrations import (
    GroupAlignment,
    MixedPolicySurrogate,
    hinted_ratio,
)
from polyopt.objectives.distillation import TeacherKL
from polyopt.objectives.heterogeneous import HeterogeneousClip
from polyopt.objectives.penalties import EntropyBonus, KLPenaltyK3
from polyopt.objectives.protocol import Surrogate
from polyopt.objectives.ratio_masks import RingMask, TwoSideMask
from polyopt.objectives.ratios import sequence_ratio
from polyopt.objectives.surrogates import (
    ClippedImportanceWeight,
    ClippedSurrogate,
    ImportanceWeighted,
    PolicyGradient,
)
from polyopt.objectives.trust_regions import ClipMask, StepDivergence
from polyopt.recipe import Recipe
from polyopt.rewards.shaping import SoftOverlong
from polyopt.rollouts.annotations import MarkAnswer
from polyopt.rollouts.demonstrations import ShowSolution
from polyopt.rollouts.guidance import HintOnFailure
from polyopt.selection.balance import DropSurplusFailures
from polyopt.selection.guidance import hints_only_on_failure
from polyopt.selection.screens import DynamicSampling
from polyopt.selection.teaching import AnnealedTeacher, teach_failures, teach_unsolved
from polyopt.selection.traces import (
    accuracy_trace_weights,
    heaviest_only,
    likelihood_trace_weights,
)
from polyopt.updates.rules import GradientSteps

REC = {
    "title": "Group-Relative REINFORCE Is Secretly an Off-Policy Algorithm",
    "paper": "arXiv 2509.24203",
    "certainty": "official code read and run",
}
KDRL = {
    "title": "KDRL: Post-Training Reasoning LLMs via Unified Knowledge Distillation and "
    "Reinforcement Learning",
    "paper": "arXiv 2506.02208",
    "certainty": "secondary descriptions; the decay per step is ours",
}
MINIMALIST = {
    "title": "A Minimalist Approach to LLM Reasoning: from Rejection Sampling to Reinforce",
    "paper": "arXiv 2504.11343",
    "certainty": "official code read and run",
}
GRAO = {
    "title": "Learning to Align, Aligning to Learn",
    "paper": "arXiv 2508.07750",
    "certainty": "paper's equations 1-4 and settings; eps is ours",
}
VARIATIONAL = {
    "title": "Variational Reasoning for Language Models",
    "paper": "arXiv 2509.22637",
    "certainty": "official data scripts read; all traces weighed, as in the paper",
}


@idea("rec-opmd-asymre", **REC)
def rec_opmd_asymre(recipe: Recipe) -> Recipe:
    """REC-OneSide-NoIS: no importance weight, and PPO's clip as a mask."""
    return _rec(recipe).append("objective.trust_region", ClipMask(0.2, 0.2))


@idea("rec-one-side-is", **REC)
def rec_one_side_is(recipe: Recipe) -> Recipe:
    """REC-OneSide-IS: ratios as constant weights, PPO's clip as a mask; GRPO's gradient."""
    return _rec(recipe, _weighted()).append("objective.trust_region", ClipMask(0.2, 0.2))


@idea("rec-two-side-is", **REC)
def rec_two_side_is(recipe: Recipe) -> Recipe:
    """REC-TwoSide-IS: tokens outside the clip range are dropped on both sides."""
    return _rec(recipe, _weighted()).append("objective.trust_region", TwoSideMask())


@idea("rec-ring", **REC)
def rec_ring(recipe: Recipe) -> Recipe:
    """REC-Ring-NoIS: tokens that moved far against their advantage count again."""
    return _rec(recipe).append("objective.trust_region", RingMask())


@idea("rec-gspo", **REC)
def rec_gspo(recipe: Recipe) -> Recipe:
    """REC-GSPO-NoIS: one-side mask by the sequence ratio."""
    return _rec_by_sequence(_rec(recipe))


@idea("rec-gspo-is", **REC)
def rec_gspo_is(recipe: Recipe) -> Recipe:
    """REC-GSPO-IS: one-side mask and constant weight by the sequence ratio."""
    return _rec_by_sequence(_rec(recipe, _weighted()))


@idea("opmd-kimi", **REC)
def opmd_kimi(recipe: Recipe) -> Recipe:
    """No importance weight, no clip; squared log-ratios keep the policy near the sampler."""
    return _rec(recipe).append("objective.trust_region", StepDivergence(K2(), 0.2))


@idea("opmd", **REC)
def opmd(recipe: Recipe) -> Recipe:
    """Online policy mirror descent: a soft mean as baseline, a damped step."""
    return (
        _reinforce(recipe)
        .claim("advantages.estimator", SoftMeanBaseline())
        .append("advantages.shaping", Damped())
    )


@idea("asymre", **REC)
def asymre(recipe: Recipe) -> Recipe:
    """A baseline below the mean: good rollouts pull more than bad ones push."""
    return _reinforce(recipe).claim("advantages.estimator", ShiftedMeanBaseline())


@idea("red-drop", **REC)
def red_drop(recipe: Recipe) -> Recipe:
    """Surplus failures of a prompt are left out at random."""
    return _reinforce(recipe).append("selection.screens", DropSurplusFailures())


@idea("red-weight", **REC)
def red_weight(recipe: Recipe) -> Recipe:
    """Advantages weigh exponentially: good rollouts more, bad ones less."""
    return _reinforce(recipe).append("advantages.shaping", ExponentialWeight())


def _weighted() -> ClippedImportanceWeight:
    """The ratio as a constant weight, without bounds."""
    return ClippedImportanceWeight(clip_high=math.inf)


def _rec(recipe: Recipe, surrogate: Surrogate | None = None) -> Recipe:
    return _reinforce(recipe).claim("objective.surrogate", surrogate or PolicyGradient())


def _reinforce(recipe: Recipe) -> Recipe:
    """Group-relative REINFORCE: what every member of the family comes with."""
    return (
        recipe.suggest("objective.surrogate", PolicyGradient())
        .suggest("advantages.estimator", group_mean_baseline)
        .suggest("objective.aggregation", token_mean)
        .suggest("objective.kl", None)
        .suggest("updates.rule", GradientSteps(minibatches=2))
    )


def _rec_by_sequence(recipe: Recipe) -> Recipe:
    return (
        recipe.claim("objective.ratio", sequence_ratio)
        .append("objective.trust_region", ClipMask(3e-4, 4e-4))
        .claim("objective.aggregation", sequence_mean_token_mean)
    )


@idea("kdrl", **KDRL)
def kdrl(recipe: Recipe) -> Recipe:
    """A teacher's k2 divergence on the policy's own rollouts, fading as training goes on."""
    return (
        recipe.claim("objective.kl", TeacherKL())
        .append("selection.parts", AnnealedTeacher())
        .suggest("advantages.estimator", GroupZScore())
        .suggest("objective.surrogate", ImportanceWeighted())
        .suggest("objective.aggregation", token_mean)
    )


@idea("kdrl-failures", **KDRL)
def kdrl_failures(recipe: Recipe) -> Recipe:
    """`kdrl` where only wrong rollouts follow the teacher."""
    return kdrl.apply(recipe).append("selection.parts", teach_failures)


@idea("kdrl-unsolved", **KDRL)
def kdrl_unsolved(recipe: Recipe) -> Recipe:
    """`kdrl` where only prompts that all rollouts fail follow the teacher."""
    return kdrl.apply(recipe).append("selection.parts", teach_unsolved)


@idea("raft", **MINIMALIST)
def raft(recipe: Recipe) -> Recipe:
    """Rejection sampling: likelihood of the rollouts with positive reward."""
    return _minimalist(recipe, positive_reward, PolicyGradient())


@idea("raft++", **MINIMALIST)
def raft_plus_plus(recipe: Recipe) -> Recipe:
    """Rejection sampling with PPO's clipped ratio."""
    return _minimalist(recipe, positive_reward, ClippedSurrogate(0.2, 0.2))


@idea("raft-reinforce-rej", **MINIMALIST)
def raft_reinforce_rej(recipe: Recipe) -> Recipe:
    """Reinforce-Rej: raw rewards (+1 and -1) as credit, none where a prompt's are all equal."""
    clip = ClippedSurrogate(0.2, 0.2, dual_clip=3.0)
    return _minimalist(recipe, MixedGroupReward(), clip)


def _minimalist(recipe: Recipe, estimator: object, surrogate: Surrogate) -> Recipe:
    return (
        recipe.claim("advantages.estimator", estimator)
        .suggest("objective.surrogate", surrogate)
        .suggest("objective.aggregation", token_mean)
        .suggest("objective.kl", KLPenaltyK3(0.001))
        .suggest("updates.rule", GradientSteps(minibatches=4))
    )


@idea(
    title="RAPID: An Efficient RL Algorithm for Small Language Models",
    paper="arXiv 2510.03515",
    certainty="reconstructed from abstract and summaries; cap and minibatches are ours",
)
def rapid(recipe: Recipe) -> Recipe:
    """One large batch of rollouts, many small steps, importance weights capped but never silent."""
    return (
        recipe.claim("objective.surrogate", ClippedImportanceWeight(clip_high=4.0))
        .suggest("advantages.estimator", group_mean_baseline)
        .suggest("objective.aggregation", sequence_mean_token_sum)
        .suggest("updates.rule", GradientSteps(minibatches=4))
        .suggest("objective.kl", None)
    )


@idea("grao", **GRAO)
def grao(recipe: Recipe) -> Recipe:
    """Explores by advantage, imitates a reference answer, and aligns the one with the other."""
    return _aligned(recipe, PopulationZScore())


@idea("grao-own-statistics", **GRAO)
def grao_own_statistics(recipe: Recipe) -> Recipe:
    """`grao` with mean and deviation of the policy's own rollouts only, as printed."""
    return _aligned(recipe, OwnZScore())


def _aligned(recipe: Recipe, estimator: object) -> Recipe:
    return (
        recipe.claim("objective.surrogate", GroupAlignment())
        .append("rollouts.additions", ShowSolution())
        .claim("advantages.estimator", estimator)
        .suggest("objective.kl", None)
    )


@idea(
    title="RL-PLUS: Countering Capability Boundary Collapse of LLMs in Reinforcement Learning with "
    "Hybrid-policy Optimization",
    paper="arXiv 2508.00222",
    certainty="official code read and run; the released script's settings",
)
def rl_plus(recipe: Recipe) -> Recipe:
    """Demonstrations by multiple importance sampling, weighted towards unlikely tokens."""
    return (
        recipe.claim("objective.surrogate", MixedPolicySurrogate())
        .append("rollouts.additions", ShowSolution())
        .claim("advantages.estimator", OwnMeanBaseline())
        .suggest("objective.aggregation", ConstantLength())
        .suggest("objective.entropy", EntropyBonus(0.001))
        .suggest("objective.kl", None)
    )


@idea("variational-reasoning", **VARIATIONAL)
def variational_reasoning(recipe: Recipe) -> Recipe:
    """Likelihood of traces, weighed by accuracy and by how plausible the reference finds them."""
    return _weighed_likelihood(recipe).append("selection.parts", accuracy_trace_weights)


@idea("variational-reasoning-likelihood", **VARIATIONAL)
def variational_reasoning_likelihood(recipe: Recipe) -> Recipe:
    """`variational-reasoning` weighed by the reference answer's likelihood: needs no verifier."""
    return (
        _weighed_likelihood(recipe)
        .append("rollouts.annotations", MarkAnswer())
        .append("selection.parts", likelihood_trace_weights)
    )


@idea("variational-reasoning-best", **VARIATIONAL)
def variational_reasoning_best(recipe: Recipe) -> Recipe:
    """`variational-reasoning` on the best trace of each question, as the released pipeline."""
    parts = (accuracy_trace_weights, heaviest_only)
    return _weighed_likelihood(recipe).append("selection.parts", *parts)


def _weighed_likelihood(recipe: Recipe) -> Recipe:
    return (
        recipe.claim("advantages.estimator", every_rollout)
        .claim("objective.surrogate", PolicyGradient())
        .suggest("objective.aggregation", sequence_mean_token_sum)
        .suggest("objective.kl", None)
    )


@idea(
    title="Adaptive Guidance Accelerates Reinforcement Learning of Reasoning Models",
    paper="arXiv 2506.13923",
    certainty="reconstructed from abstract and summaries",
)
def guide(recipe: Recipe) -> Recipe:
    """Failed prompts are sampled with a hint, and trained without it, by the ratio across both."""
    return (
        recipe.claim("rollouts.sampler", HintOnFailure())
        .claim("objective.ratio", hinted_ratio)
        .append("selection.screens", hints_only_on_failure)
        .suggest("advantages.estimator", PopulationZScore())
        .suggest("objective.surrogate", ClippedSurrogate(0.2, 0.2))
        .suggest("objective.aggregation", sequence_mean_token_mean)
    )


@idea(
    "hapo-heterogeneous",
    title="Heterogeneous Adaptive Policy Optimization",
    paper="HAPO, 2025",
    certainty="official code read and run; sign of its negative entropy scores as in the paper",
)
def hapo_heterogeneous(recipe: Recipe) -> Recipe:
    """Group average, clip range and advantage of each token follow its entropy."""
    return (
        recipe.claim("advantages.estimator", TokenGroupAverage())
        .claim("objective.surrogate", HeterogeneousClip())
        .append("selection.screens", DynamicSampling())
        .append("rewards.shaping", SoftOverlong())
        .suggest("objective.aggregation", token_mean)
        .suggest("objective.kl", None)
        .suggest("updates.rule", GradientSteps(minibatches=4))
    )


@idea(
    title="Reinforcement Learning for Reasoning in Large Language Models with One Training Example",
    paper="arXiv 2504.20571",
    certainty="official code read and run",
)
def offline_token_entropy_loss(recipe: Recipe) -> Recipe:
    """1-shot RLVR's loss: GRPO with an entropy loss and a small k3 penalty, per token."""
    return (
        recipe.claim("objective.entropy", EntropyBonus(0.001))
        .suggest("objective.kl", KLPenaltyK3(0.001, bound=10.0))
        .suggest("advantages.estimator", GroupZScore())
        .suggest("objective.surrogate", ClippedSurrogate(0.2, 0.2))
        .suggest("objective.aggregation", token_mean)
        .suggest("rollouts.temperature", 0.6)
    )
