"""Whose number is it: TRL's `GRPOConfig` and a recipe brought into agreement."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch

from polyopt.adapters.limits import Host, check, owner
from polyopt.columns import SAMPLED
from polyopt.errors import UserError
from polyopt.ideas import build
from polyopt.recipe import Recipe

TRL = Host(
    name="TRL's trainer",
    columns=SAMPLED | {"advantages", "logp_old", "logp_ref"},
    evaluation=frozenset({"entropy"}),
    metadata=True,
    texts=True,
    memory=True,
)

LOSS_FIELDS = (
    "loss_type",
    "epsilon",
    "epsilon_high",
    "delta",
    "beta",
    "scale_rewards",
    "importance_sampling_level",
    "multi_objective_aggregation",
    "mask_truncated_completions",
    "top_entropy_quantile",
    "entropy_coef",
    "use_adaptive_entropy",
    "off_policy_mask_threshold",
    "use_bias_correction_kl",
)
"""Fields of `GRPOConfig` that say what the loss and the advantages are: the recipe says that."""

SHARED = {
    "rollouts.per_prompt": "num_generations",
    "rollouts.max_tokens": "max_completion_length",
    "rollouts.temperature": "temperature",
}
"""Numbers of a recipe that TRL's trainer reads from its own configuration."""


def agreed(recipe: str | Recipe, args: Any, config_class: Any) -> tuple[Recipe, Any]:
    """The checked recipe with the run's numbers, and the configuration that goes with it.

    Args:
        recipe: An expression such as `"dapo+ktae"`, or a recipe.
        args: TRL's configuration; None makes one of the recipe's numbers.
        config_class: TRL's `GRPOConfig`.

    Raises:
        UserError: The recipe needs what TRL doesn't give, or a number is said twice, differently.
    """
    built = build(recipe)
    check(built, TRL)
    _check_group_size(built)
    args = _from_recipe(built, config_class) if args is None else copy.copy(args)
    _check_loss_fields(built, args, config_class)
    _check_window(args)
    numbers = {slot: getattr(args, field) for slot, field in SHARED.items()}
    _check_claims(built, numbers)
    if "logp_ref" in built.needs():
        kl = built.objective.kl
        args.beta = (kl.coefficient if kl is not None else 0.0) or 1.0
    return build(built, numbers), args


def _from_recipe(recipe: Recipe, config_class: Any) -> Any:
    """TRL's defaults with the recipe's numbers."""
    per_prompt = recipe.rollouts.per_prompt
    return config_class(
        f"{recipe.name}-trl",
        num_generations=per_prompt,
        per_device_train_batch_size=max(8 // per_prompt, 1) * per_prompt,
        max_completion_length=recipe.rollouts.max_tokens,
        temperature=recipe.rollouts.temperature,
        learning_rate=recipe.updates.optimizer.lr,
        bf16=torch.cuda.is_available(),
    )


def _check_group_size(recipe: Recipe) -> None:
    """Raise UserError for a recipe of one rollout a prompt: TRL's trainer has no groups of one."""
    if recipe.rollouts.per_prompt < 2:
        path = "rollouts.per_prompt"
        raise UserError(
            f"{recipe.name!r} samples one rollout a prompt ({path}, from {owner(recipe, path)}), "
            "and TRL's trainer at least two. Drop the idea, or train with polyopt itself: "
            f"polyopt train {recipe.name} --model M --task T"
        )


def _check_loss_fields(recipe: Recipe, args: Any, config_class: Any) -> None:
    """Raise UserError for a field that would define the loss a second time."""
    defaults = {f.name: f.default for f in dataclasses.fields(config_class)}
    for name in LOSS_FIELDS:
        value = getattr(args, name, None)
        if name in defaults and value != defaults[name]:
            raise UserError(
                f"GRPOConfig({name}={value!r}) has no effect here: the recipe {recipe.name!r} "
                f"says what the loss is. Leave {name} out, and change the recipe instead "
                f"(`polyopt show {recipe.name}` lists its parts and numbers)."
            )


def _check_window(args: Any) -> None:
    """Raise UserError where an optimizer step would straddle two batches of rollouts."""
    if args.steps_per_generation % args.gradient_accumulation_steps:
        raise UserError(
            f"steps_per_generation={args.steps_per_generation} isn't a multiple of "
            f"gradient_accumulation_steps={args.gradient_accumulation_steps}, so an optimizer step "
            "would train on two generations, and the weights of its tokens can't be known in "
            f"advance. Set steps_per_generation to {args.gradient_accumulation_steps}, or leave "
            "it out."
        )


def _check_claims(recipe: Recipe, numbers: dict[str, Any]) -> None:
    """Raise UserError where an idea is about a number and the configuration says another."""
    held = {
        "rollouts.per_prompt": recipe.rollouts.per_prompt,
        "rollouts.max_tokens": recipe.rollouts.max_tokens,
        "rollouts.temperature": recipe.rollouts.temperature,
    }
    for slot, value in held.items():
        origin = recipe.origins.get(slot)
        if origin is not None and origin.claimed and value != numbers[slot]:
            raise UserError(
                f"{origin.idea!r} claims {slot}={value}, but GRPOConfig says "
                f"{SHARED[slot]}={numbers[slot]}. Set {SHARED[slot]}={value}, or drop the idea."
            )
