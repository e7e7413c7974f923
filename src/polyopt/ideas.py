"""Ideas: published methods as functions `Recipe -> Recipe`, and expressions that add them up.

    @idea(paper="arXiv 2402.03300", title="DeepSeekMath")
    def grpo(recipe: Recipe) -> Recipe:
        return recipe.claim("advantages.estimator", GroupZScore())

`build("dapo+ktae")` applies the ideas left to right onto the base recipe and checks the result.
An idea in a user's own file is written `grpo+mine.py:my_idea`.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from polyopt.errors import RecipeError, did_you_mean
from polyopt.python_files import load_object
from polyopt.recipe import Recipe


@dataclass(frozen=True)
class Weighted:
    """An idea with a weight, inside `mix`."""

    weight: float
    idea: Idea


@dataclass(frozen=True)
class Idea:
    """A published method as a change of a recipe.

    Attributes:
        name: What it is called in expressions.
        apply: The change.
        title: Title of the paper.
        paper: Where it was published (`"arXiv 2402.03300"`); empty for plain building blocks.
        certainty: How sure the catalog is of equations and defaults, in a few words.
        source: File and line of the definition, for ideas in users' files.
    """

    name: str
    apply: Callable[[Recipe], Recipe]
    title: str = ""
    paper: str = ""
    certainty: str = ""
    source: str = ""

    @property
    def summary(self) -> str:
        """First line of the function's docstring."""
        return (inspect.getdoc(self.apply) or "").split("\n")[0]

    @property
    def stages(self) -> tuple[str, ...]:
        """Fields of the recipe that the idea touches when applied to the base."""
        slots = self(Recipe()).origins
        return tuple(dict.fromkeys(slot.split(".")[0] for slot in slots))

    def __rmul__(self, weight: float) -> Weighted:
        """`0.7 * idea`, for `mix`."""
        return Weighted(float(weight), self)

    def __add__(self, other: Idea) -> Idea:
        """Both ideas, one after the other, as one."""

        def both(recipe: Recipe) -> Recipe:
            return other.apply(self.apply(recipe))

        return Idea(f"{self.name}+{other.name}", both)

    def __call__(self, recipe: Recipe) -> Recipe:
        """The recipe with this idea in it.

        Raises:
            RecipeError: The idea is already in it, conflicts with another, or returns no recipe.
        """
        if self.name in recipe.ideas:
            raise RecipeError(f"{self.name!r} is in the expression twice: name it once.")
        applied = self.apply(dataclasses.replace(recipe, ideas=(*recipe.ideas, self.name)))
        if not isinstance(applied, Recipe):
            raise RecipeError(
                f"the idea {self.name!r} returned {type(applied).__name__}, not a Recipe: end it "
                "with `return recipe.claim(...)` or the like."
            )
        return applied


SEPARATOR = r"\+(?=\s*[A-Za-z0-9_./~])"
"""A plus sign before the beginning of a name; those inside `reinforce++-baseline` aren't."""

CATALOG: dict[str, Idea] = {}
"""Every published idea by name; complete after `load_catalog()`."""


def idea(
    name: str | None = None, *, title: str = "", paper: str = "", certainty: str = ""
) -> Callable[[Callable[[Recipe], Recipe]], Idea]:
    """Make an idea of the function below; inside `polyopt.catalog` it is also registered.

    Args:
        name: Name in expressions; by default the function's, with hyphens.
        title: Title of the paper.
        paper: Where it was published.
        certainty: How sure the equations and defaults are.
    """

    def make(function: Callable[[Recipe], Recipe]) -> Idea:
        own = name or function.__name__.replace("_", "-")
        made = Idea(own, function, title, paper, certainty)
        if function.__module__.startswith("polyopt.catalog"):
            CATALOG[own] = made
        return made

    return make


def mix(*members: Weighted) -> Idea:
    """One idea whose advantages are the weighted sum of several ideas' advantages.

    `mix(0.7 * grpo, 0.3 * ktae)`, or in an expression `mix(0.7*grpo,0.3*ktae)`. Everything else
    that the ideas bring is added up as usual. What members have in common is computed once, and
    each member's share of the credit is logged.

    Raises:
        RecipeError: Fewer than two members, or one that assigns no advantages.
    """
    from polyopt.advantages.mixture import Member, Mixture

    if len(members) < 2:
        raise RecipeError("a mix needs two weighted ideas or more: mix(0.7*grpo,0.3*ktae)")
    name = f"mix({','.join(f'{m.weight:g}*{m.idea.name}' for m in members)})"

    def apply(recipe: Recipe) -> Recipe:
        summands = []
        for member in members:
            alone = member.idea.apply(dataclasses.replace(Recipe(), ideas=(member.idea.name,)))
            if not any(slot.startswith("advantages.") for slot in alone.origins):
                raise RecipeError(f"{member.idea.name!r} in {name!r} assigns no advantages to mix.")
            parts = (alone.advantages.estimator, *alone.advantages.shaping)
            label = f"{member.weight:g}*{member.idea.name}"
            summands.append(Member(label, member.weight, parts))
            recipe = _without_advantages(recipe, member.idea.apply(recipe))
        return recipe.claim("advantages.estimator", Mixture(tuple(summands)))

    return Idea(name, apply)


def _without_advantages(before: Recipe, after: Recipe) -> Recipe:
    """What an idea brought, except for its advantages."""
    kept = {k: v for k, v in after.origins.items() if not k.startswith("advantages.")}
    held = {k: v for k, v in before.origins.items() if k.startswith("advantages.")}
    return dataclasses.replace(after, advantages=before.advantages, origins={**kept, **held})


def load_catalog() -> Mapping[str, Idea]:
    """Import every module of `polyopt.catalog`; all ideas by name."""
    package = importlib.import_module("polyopt.catalog")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"polyopt.catalog.{module.name}")
    return CATALOG


def build(expression: str | Recipe, overrides: Mapping[str, str | object] | None = None) -> Recipe:
    """The checked recipe of an expression such as `"dapo+ktae+greso"`.

    Args:
        expression: Names of ideas joined by `+`, or a recipe, which is only checked.
        overrides: Values by path, as for `--set`.

    Raises:
        RecipeError: Unknown idea, conflict, unmet need, or a bad path or value.
    """
    recipe = expression if isinstance(expression, Recipe) else _applied(expression)
    return recipe.override(overrides or {}).check()


def find_idea(name: str) -> Idea:
    """An idea by catalog name, or from a file as `path/file.py:function`.

    Raises:
        RecipeError: No such idea, file or function.
    """
    if name.startswith("mix(") and name.endswith(")"):
        return mix(*(_weighted(member) for member in name[4:-1].split(",")))
    if ".py:" in name:
        return _from_file(name)
    catalog = load_catalog()
    if name not in catalog:
        raise RecipeError(
            f"there is no idea called {name!r}; {did_you_mean(name, catalog)} "
            "`polyopt recipes` lists all."
        )
    return catalog[name]


def names_in(expression: str) -> list[str]:
    """The names joined by `+` in an expression; those inside `mix(...)` stay together.

    Raises:
        RecipeError: A name is missing, or a parenthesis.
    """
    names, depth = [""], 0
    for piece in re.split(rf"([()]|{SEPARATOR})", expression):
        depth += {"(": 1, ")": -1}.get(piece, 0)
        if piece == "+" and depth == 0:
            names.append("")
        else:
            names[-1] += piece
    names = [name.strip() for name in names]
    if depth != 0 or not all(names):
        raise RecipeError(
            f"{expression!r} is not an expression: write names of ideas joined by +, such as "
            "dapo+ktae+greso or dapo+mix(0.7*grpo,0.3*ktae)."
        )
    return names


def _applied(expression: str) -> Recipe:
    recipe = Recipe()
    for name in names_in(expression):
        recipe = find_idea(name)(recipe)
    return recipe


def _weighted(text: str) -> Weighted:
    """`0.7*grpo` or `0.7*grpo+ktae`."""
    weight, star, names = text.strip().partition("*")
    try:
        factor = float(weight)
    except ValueError:
        star = ""
    if not star:
        raise RecipeError(f"{text.strip()!r} in a mix: write weight*idea, such as 0.7*grpo")
    first, *rest = [find_idea(name) for name in names_in(names)]
    for idea in rest:
        first = first + idea
    return Weighted(factor, first)


def _from_file(name: str) -> Idea:
    """An idea, or any function from recipe to recipe, in a user's file."""
    file, _, attribute = name.rpartition(":")
    found = load_object(Path(file).expanduser(), attribute)
    if isinstance(found, Idea):
        return dataclasses.replace(found, source=name)
    if callable(found):
        return Idea(attribute.replace("_", "-"), found, source=name)
    raise RecipeError(f"{attribute!r} in {file} is {type(found).__name__}, not an idea.")
