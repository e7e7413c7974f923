"""The command to try after a finding: the run's expression with one more idea and one flag."""

from __future__ import annotations

from typing import Any

from polyopt.diagnosis.evidence import Evidence
from polyopt.diagnosis.signs import Finding
from polyopt.errors import RecipeError
from polyopt.ideas import build
from polyopt.pipeline import describe
from polyopt.recipe import Recipe


def next_run(run: Evidence, finding: Finding) -> str:
    """`polyopt train EXPRESSION+IDEA --flag VALUE ...`; empty where the expression isn't known.

    The first of the sign's ideas is taken that goes with the expression and changes something, and
    the first of its flags that this recipe has. An expression with ideas from a file isn't built:
    looking at a run should run nobody's code.
    """
    expression = str(run.about.get("expression") or "")
    usual = _built(expression) if ".py:" not in expression else None
    if usual is None:
        return ""
    for name in [*(f"{expression}+{idea}" for idea in finding.ideas), expression]:
        recipe = _built(name)
        changed = recipe is not None and (name == expression or parts(recipe) != parts(usual))
        if recipe is not None and changed:
            flags = [flag for flag in finding.flags if applies(name, recipe, flag)][:1]
            if flags or name != expression:
                return " ".join(["polyopt train", name, *flags, "..."])
    return ""


def applies(expression: str, recipe: Recipe, flag: str) -> bool:
    """Whether a flag is one of every run, or sets a value of the recipe that was another."""
    if not flag.startswith("--set "):
        return True
    path, value = flag.removeprefix("--set ").split("=")
    changed = _built(expression, {path: value})
    return changed is not None and parts(changed) != parts(recipe)


def parts(recipe: Recipe) -> list[Any]:
    """Slots, parts and numbers of a recipe, without who filled them."""
    return [(row["slot"], row["part"], row["numbers"]) for row in describe(recipe)]


def _built(expression: str, overrides: dict[str, str] | None = None) -> Recipe | None:
    try:
        return build(expression, dict(overrides or {}))
    except RecipeError:
        return None
