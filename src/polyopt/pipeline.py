"""A recipe and its batch arithmetic in words: what `polyopt show` and the start of a run print."""

from __future__ import annotations

import dataclasses
from typing import Any

from polyopt.ideas import find_idea
from polyopt.parts import info_of, name_of
from polyopt.recipe import Recipe

STAGE_FIELDS = (
    "prompts",
    "rollouts",
    "rewards",
    "selection",
    "replay",
    "advantages",
    "objective",
    "updates",
)
"""Fields of a recipe in the order in which they act on a batch (screens act before replay)."""


def describe(recipe: Recipe) -> list[dict[str, Any]]:
    """One row per part: stage, slot, part, numbers, and the idea and paper it comes from."""
    rows = []
    for stage in STAGE_FIELDS:
        holder = getattr(recipe, stage)
        numbers = {}
        for f in dataclasses.fields(holder):
            value, slot = getattr(holder, f.name), f"{stage}.{f.name}"
            if isinstance(value, tuple):
                rows += [_row(recipe, f"{slot}[{i}]", item) for i, item in enumerate(value)]
            elif info_of(value) is not None:
                rows.append(_row(recipe, slot, value))
            elif value is not None:
                numbers[f.name] = value
        if numbers:
            rows.append(_row(recipe, stage, None, numbers))
    return rows


def batch_arithmetic(recipe: Recipe) -> dict[str, int]:
    """How many of what: every number with its unit in its name."""
    rule, rollouts = recipe.updates.rule, recipe.rollouts.per_prompt
    per_batch = recipe.prompts.per_step * rollouts
    minibatches = getattr(rule, "minibatches", 1)
    return {
        "prompts per step": recipe.prompts.per_step,
        "rollouts per prompt": rollouts,
        "rollouts per step": per_batch,
        "completion tokens per rollout, at most": recipe.rollouts.max_tokens,
        "optimizer steps per rollout batch": rule.steps,
        "rollouts per optimizer step": -(-per_batch // minibatches),
        "completion tokens per optimizer step, at most": -(-per_batch // minibatches)
        * recipe.rollouts.max_tokens,
        "tokens per micro-batch, at most": recipe.updates.micro_tokens,
    }


def _row(
    recipe: Recipe, slot: str, value: object, numbers: dict[str, Any] | None = None
) -> dict[str, Any]:
    origin = recipe.origins.get(slot)
    source = _source(origin.idea) if origin else {"paper": "", "title": ""}
    return {
        "stage": slot.split(".")[0],
        "slot": slot,
        "part": name_of(value) if value is not None else "(numbers)",
        "numbers": _numbers(value) if numbers is None else numbers,
        "idea": origin.idea if origin else None,
        **source,
    }


def _numbers(value: object) -> dict[str, Any]:
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return {}
    return {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}


def _source(idea: str) -> dict[str, str]:
    from polyopt.errors import RecipeError

    if idea.startswith("mix("):
        return {"paper": "", "title": "weighted sum"}
    try:
        found = find_idea(idea)
    except RecipeError:
        return {"paper": "", "title": "your own"}
    return {"paper": found.paper, "title": found.title}


def stage_title(field: str) -> str:
    """The stage's name: fields of a recipe are called as their folder, except the objective."""
    return "objectives" if field == "objective" else field
