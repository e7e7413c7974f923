"""verl's options that go with a recipe, and the errors where they contradict it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from polyopt.adapters.limits import owner
from polyopt.errors import UserError
from polyopt.objectives.aggregation import (
    ConstantLength,
    sequence_mean_token_mean,
    sequence_mean_token_sum,
    token_mean,
)
from polyopt.objectives.best_of_k import ExactOffPolicyBestOfK, OffPolicyBestOfK
from polyopt.objectives.penalties import EntropyBonus
from polyopt.parts import name_of
from polyopt.recipe import Recipe
from polyopt.selection.screens import DynamicSampling

MODES = {
    name_of(token_mean): "token-mean",
    name_of(sequence_mean_token_mean): "seq-mean-token-mean",
    name_of(sequence_mean_token_sum): "seq-mean-token-sum",
    name_of(ConstantLength()): "seq-mean-token-sum-norm",
}
"""Our aggregations and verl's `loss_agg_mode`."""

KL_TYPES = {
    "kl-penalty-k1": ("k1", "kl"),
    "kl-penalty-k2": ("k2", "mse"),
    "kl-penalty-k3": ("k3", "low_var_kl"),
    "kl-penalty-absolute": ("abs",),
    "kl-penalty-k1-plus": ("k1+", "kl+"),
    "kl-penalty-k3-plus": ("k3+", "low_var_kl+"),
}
"""Our penalties and verl's `kl_loss_type`, the first being the one we suggest."""

GROUP_LOSSES = (OffPolicyBestOfK, ExactOffPolicyBestOfK)
"""Surrogates that give token losses but read rewards and groups."""

ACTOR = "actor_rollout_ref.actor"


@dataclass(frozen=True)
class Names:
    """What an expression is called in verl's registries; None where it brings nothing.

    Attributes:
        estimator: For `algorithm.adv_estimator`.
        loss: For `actor_rollout_ref.actor.policy_loss.loss_mode`.
    """

    estimator: str | None
    loss: str | None


def assigns_credit(recipe: Recipe) -> bool:
    """Whether some idea of the recipe is about advantages."""
    return any(slot.startswith("advantages.") for slot in recipe.origins)


def defines_loss(recipe: Recipe) -> bool:
    """Whether some idea of the recipe is about the loss."""
    return any(slot.startswith("objective.") for slot in recipe.origins)


def options(recipe: Recipe, names: Names) -> dict[str, Any]:
    """verl's options by path, for its command line or configuration file."""
    found: dict[str, Any] = {}
    if names.estimator:
        found["algorithm.adv_estimator"] = names.estimator
    if names.loss:
        found[f"{ACTOR}.policy_loss.loss_mode"] = names.loss
        wanted = _wanted(recipe)
        found |= {f"{ACTOR}.{name}": values[0] for name, values in wanted.items()}
    if any(isinstance(screen, DynamicSampling) for screen in recipe.selection.screens):
        found["algorithm.filter_groups.enable"] = True
    return found


def check_options(recipe: Recipe, mode: str, config: Any) -> None:
    """Raise UserError for the first option that contradicts the recipe's loss."""
    for name, values in _wanted(recipe).items():
        have = mode if name == "loss_agg_mode" else getattr(config, name, None)
        if config is None and name != "loss_agg_mode":
            continue
        if have not in values:
            raise UserError(
                f"verl's {ACTOR}.{name} is {have!r}, but {recipe.name!r} wants {values[0]!r}: set "
                f"{ACTOR}.{name}={values[0]}, or drop the idea that wants it "
                f"(polyopt.adapters.verl.settings({recipe.name!r}) gives all options)."
            )


def check_whole(recipe: Recipe, rows: int, info: Mapping[str, Any]) -> None:
    """Raise UserError where a loss that couples rollouts would see only some of them."""
    size = info.get("global_batch_size")
    if size not in (None, rows) or (info.get("dp_size") or 1) > 1:
        raise UserError(
            f"{recipe.name!r} couples the rollouts of a mini-batch, and verl hands it {rows} of "
            f"{size}: its result would depend on how the mini-batch is cut. Set "
            f"{ACTOR}.ppo_micro_batch_size_per_gpu to the whole mini-batch and use one GPU, or "
            "train with polyopt or its trainer for TRL."
        )


def reject_selection(recipe: Recipe) -> None:
    """Raise UserError for parts that leave rollouts or tokens out: an estimator can't.

    Dynamic sampling is let pass, since it is a setting of verl's own (`filter_groups`).
    """
    named: dict[str, object] = {
        f"selection.screens[{i}]": item for i, item in enumerate(recipe.selection.screens)
    }
    named |= {f"selection.parts[{i}]": item for i, item in enumerate(recipe.selection.parts)}
    for slot, item in named.items():
        if not isinstance(item, DynamicSampling):
            raise UserError(
                f"{name_of(item)!r} ({slot}, from {owner(recipe, slot)}) decides which rollouts "
                "and tokens train; verl's advantage estimators can't. Drop the idea, or train with "
                f"polyopt itself: polyopt train {recipe.name} --model M --task T"
            )


def reject_whole_losses(recipe: Recipe) -> None:
    """Raise UserError for losses and aggregations that have no counterpart in verl."""
    surrogate, aggregation = recipe.objective.surrogate, recipe.objective.aggregation
    way = f"Train with polyopt itself: polyopt train {recipe.name} --model M --task T"
    if getattr(surrogate, "aggregates", False) or isinstance(surrogate, GROUP_LOSSES):
        raise UserError(
            f"{name_of(surrogate)!r} (objective.surrogate, from "
            f"{owner(recipe, 'objective.surrogate')}) is a loss of whole groups, and verl doesn't "
            f"say to a policy loss which rollouts form a group. {way}"
        )
    if "objective.aggregation" in recipe.origins and name_of(aggregation) not in MODES:
        raise UserError(
            f"verl has no aggregation like {name_of(aggregation)!r} (objective.aggregation, from "
            f"{owner(recipe, 'objective.aggregation')}). {way}"
        )
    kl = recipe.objective.kl
    if kl is not None and name_of(kl) not in KL_TYPES:
        raise UserError(
            f"verl has no KL term like {name_of(kl)!r} (objective.kl, from "
            f"{owner(recipe, 'objective.kl')}). {way}"
        )
    entropy = recipe.objective.entropy
    if entropy is not None and not isinstance(entropy, EntropyBonus):
        raise UserError(
            f"verl has no entropy term like {name_of(entropy)!r} (objective.entropy, from "
            f"{owner(recipe, 'objective.entropy')}). {way}"
        )


def _wanted(recipe: Recipe) -> dict[str, tuple[Any, ...]]:
    """Options of the actor that the loss of a recipe goes with: those that will do, best first."""
    objective = recipe.objective
    wanted: dict[str, tuple[Any, ...]] = {}
    if "objective.aggregation" in recipe.origins:
        wanted["loss_agg_mode"] = (MODES.get(name_of(objective.aggregation)),)
        length = getattr(objective.aggregation, "length", None)
        if length is not None:
            wanted["loss_scale_factor"] = (length,)
    if objective.kl is not None:
        wanted["use_kl_loss"] = (True,)
        wanted["kl_loss_coef"] = (objective.kl.coefficient,)
        wanted["kl_loss_type"] = KL_TYPES.get(name_of(objective.kl), (None,))
    elif "objective.kl" in recipe.origins:
        wanted["use_kl_loss"] = (False,)
    if objective.entropy is not None:
        wanted["entropy_coeff"] = (objective.entropy.coefficient,)
    return wanted
