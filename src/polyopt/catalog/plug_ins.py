"""Plug-ins: ideas that change one to three stages of whatever they are added to."""

from __future__ import annotations

from polyopt.advantages.baselines import GroupZScore
from polyopt.advantages.key_tokens import KeyTokens
from polyopt.ideas import idea
from polyopt.prompts.selective import SelectiveRollout
from polyopt.recipe import Recipe
from polyopt.replay.successes import ReplaySuccesses
from polyopt.rollouts.hints import GuidedSampling
from polyopt.selection.screens import AdaptiveRefill
from polyopt.updates.slow_fast import SlowFast


@idea(
    title="KTAE: A Model-Free Algorithm to Key-Tokens Advantage Estimation in Mathematical "
    "Reasoning",
    paper="arXiv 2505.16826",
    certainty="official code read and run; its rounding-dependent ties replaced by tolerances",
)
def ktae(recipe: Recipe) -> Recipe:
    """Adds to each token's credit its statistical tie to success within the group."""
    return recipe.append("advantages.shaping", KeyTokens()).suggest(
        "advantages.estimator", GroupZScore()
    )


@idea(
    title="Act Only When It Pays: Efficient Reinforcement Learning for LLM Reasoning via "
    "Selective Rollouts",
    paper="arXiv 2506.02177",
    certainty="official code read; skip rule run",
)
def greso(recipe: Recipe) -> Recipe:
    """Skips prompts that lately gave no signal, before any rollout is spent on them."""
    return recipe.append("prompts.filters", SelectiveRollout()).claim(
        "selection.refill", AdaptiveRefill()
    )


@idea(
    title="RLEP: Reinforcement Learning with Experience Replay for LLM Reasoning",
    paper="arXiv 2507.07451",
    certainty="paper and official data code read",
)
def rlep(recipe: Recipe) -> Recipe:
    """Adds verified answers from a pool to each group."""
    return recipe.claim("replay.buffer", ReplaySuccesses())


@idea(
    title="Guided Hybrid Policy Optimization",
    paper="GHPO, 2025",
    certainty="official code read; one quirk of its prompt bookkeeping not copied",
)
def ghpo(recipe: Recipe) -> Recipe:
    """Prompts that all rollouts fail are sampled anew with ever longer hints."""
    return recipe.claim("rollouts.sampler", GuidedSampling())


@idea(
    title="Slow-Fast Policy Optimization",
    paper="arXiv 2510.04072",
    certainty="equations read in a transcription; K, alpha and window are ours",
)
def sfpo(recipe: Recipe) -> Recipe:
    """A few fast steps, a step back towards the start, then one slow step, on each batch."""
    return recipe.claim("updates.rule", SlowFast())
