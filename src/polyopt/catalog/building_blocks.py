"""Single ingredients under their own names, to be added to any system."""

from __future__ import annotations

from polyopt.ideas import idea
from polyopt.objectives.aggregation import (
    ConstantLength,
    sequence_mean_token_mean,
    sequence_mean_token_sum,
    token_mean,
)
from polyopt.objectives.penalties import EntropyBonus, KLPenaltyK1, KLPenaltyK2, KLPenaltyK3
from polyopt.objectives.surrogates import ClippedSurrogate
from polyopt.recipe import Recipe
from polyopt.rewards.shaping import SoftOverlong
from polyopt.selection.screens import DynamicSampling
from polyopt.selection.tokens import drop_truncated
from polyopt.updates.optimizers import Cosine

DAPO = {"title": "DAPO", "paper": "arXiv 2503.14476, section 3"}
KL = {"title": "Approximating KL divergence", "paper": "J. Schulman 2020"}


@idea("clip-higher", **DAPO)
def clip_higher(recipe: Recipe) -> Recipe:
    """An asymmetric clip range: unlikely tokens have more room to rise."""
    return recipe.claim("objective.surrogate", ClippedSurrogate(0.2, 0.28))


@idea("dual-clip", title="Mastering Complex Control in MOBA Games", paper="arXiv 1912.09729, eq. 5")
def dual_clip(recipe: Recipe) -> Recipe:
    """Bounds the loss of a negative advantage at a large ratio."""
    return recipe.claim("objective.surrogate", ClippedSurrogate(0.2, 0.2, dual_clip=3.0))


@idea("dynamic-sampling", **DAPO)
def dynamic_sampling(recipe: Recipe) -> Recipe:
    """Drops groups that are all right or all wrong and samples others in their place."""
    return recipe.append("selection.screens", DynamicSampling())


@idea("soft-overlong", **DAPO)
def soft_overlong(recipe: Recipe) -> Recipe:
    """A linear penalty over the last stretch before the completion limit."""
    return recipe.append("rewards.shaping", SoftOverlong())


@idea("overlong-filter", **DAPO)
def overlong_filter(recipe: Recipe) -> Recipe:
    """Rollouts cut off at the completion limit don't train."""
    return recipe.append("selection.parts", drop_truncated)


@idea("k1", **KL)
def kl_k1(recipe: Recipe) -> Recipe:
    """k1 penalty in the loss (its expected gradient is 0; for comparison)."""
    return recipe.claim("objective.kl", KLPenaltyK1())


@idea("k2", **KL)
def kl_k2(recipe: Recipe) -> Recipe:
    """k2 penalty in the loss: the gradient of KL(policy || reference)."""
    return recipe.claim("objective.kl", KLPenaltyK2())


@idea("k3", **KL)
def kl_k3(recipe: Recipe) -> Recipe:
    """k3 penalty in the loss, GRPO's form."""
    return recipe.claim("objective.kl", KLPenaltyK3())


@idea("entropy-bonus", title="Function optimization using connectionist RL", paper="Williams 1991")
def entropy_bonus(recipe: Recipe) -> Recipe:
    """Rewards entropy of the policy at every token."""
    return recipe.claim("objective.entropy", EntropyBonus())


@idea("cosine", title="SGDR", paper="arXiv 1608.03983, eq. 5, one cycle")
def cosine(recipe: Recipe) -> Recipe:
    """The learning rate falls as half a cosine, down to a tenth."""
    return recipe.claim("updates.schedule", Cosine())


@idea("token-mean", **DAPO)
def aggregate_token_mean(recipe: Recipe) -> Recipe:
    """Every token of the batch alike."""
    return recipe.claim("objective.aggregation", token_mean)


@idea("sequence-mean", title="DeepSeekMath", paper="arXiv 2402.03300, eq. 3")
def aggregate_sequence_mean(recipe: Recipe) -> Recipe:
    """Every rollout alike, its tokens sharing."""
    return recipe.claim("objective.aggregation", sequence_mean_token_mean)


@idea("sequence-sum", title="REINFORCE", paper="Williams 1992")
def aggregate_sequence_sum(recipe: Recipe) -> Recipe:
    """Tokens summed within a rollout, mean over rollouts."""
    return recipe.claim("objective.aggregation", sequence_mean_token_sum)


@idea("constant-length", title="Dr. GRPO", paper="arXiv 2503.20783, section 3")
def aggregate_constant_length(recipe: Recipe) -> Recipe:
    """Tokens summed within a rollout, divided by the completion limit."""
    return recipe.claim("objective.aggregation", ConstantLength())
