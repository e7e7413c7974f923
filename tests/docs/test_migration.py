"""From TRL, from verl: everything of polyopt's that the tables name exists.

That the other column is right is in `tests/peers/test_migration.py`, where TRL and verl are there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import torch

from polyopt.command_line import build_parser
from polyopt.errors import RecipeError
from polyopt.ideas import build, load_catalog
from polyopt.objectives.protocol import Evaluation
from tests.docs.pages import DOCS, table_rows

PAGES = ("from-trl.md", "from-verl.md")
STAGES = ("prompts", "rollouts", "rewards", "advantages", "selection", "objective", "updates")


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def rows(page: str) -> list[list[str]]:
    """The rows of a page's migration tables; that of what is counted differently has no names."""
    return [row for row in table_rows(DOCS / page) if row[0].startswith("`")]


def ours(page: str) -> Iterator[tuple[str, list[str]]]:
    """Every name in polyopt's column, and those of ours beside it, each with its row's names."""
    for _, mine, difference in rows(page):
        near = code(difference.split("nearest:")[1]) if "nearest:" in difference else []
        stages = tuple(f"{stage}." for stage in STAGES)
        further = [name for name in code(difference) if name.startswith(("+", "--", *stages))]
        names = [*code(mine), *near, *further]
        for name in names:
            yield name, [*names, *code(difference)]


def is_idea(name: str) -> bool:
    try:
        build(name.lstrip("+"))
    except RecipeError as error:
        return "no idea called" not in str(error)
    return True


def can_be_set(path: str, among: list[str]) -> bool:
    """Whether a path, with its value or with its own as it is, can be set in one of the recipes."""
    path, _, value = path.partition("=")
    ideas = [name.lstrip("+") for name in among if is_idea(name)]
    for expression in ["grpo", *ideas, *(f"grpo+{idea}" for idea in ideas)]:
        for attempt in (value,) if value else ("1", "2", "0.5"):
            try:
                build(expression, {path: attempt})
            except RecipeError:
                continue
            return True
    return False


OPTIONS = {
    option
    for command in next(a for a in build_parser()._actions if a.dest == "command").choices.values()
    for option in command._option_string_actions
}


@pytest.mark.parametrize("page", PAGES)
def test_every_name_of_ours_exists(page: str) -> None:
    wrong = []
    for name, among in ours(page):
        if name.startswith("--"):
            known = name.split()[0] in OPTIONS
        elif "." in name:
            known = can_be_set(name, among)
        else:
            known = is_idea(name)
        if not known:
            wrong.append(name)
    assert not wrong


@pytest.mark.parametrize("page", PAGES)
def test_every_row_says_something_of_ours_or_none(page: str) -> None:
    for theirs, mine, _ in rows(page):
        said = code(mine) or mine == "none" or "rest of this page" in mine
        assert said, f"{theirs}: {mine!r}"


@pytest.mark.parametrize("page", PAGES)
def test_a_name_that_does_not_exist_would_be_found(page: str) -> None:
    assert not is_idea("+dapoo")
    assert not can_be_set("objective.clip_hihg", ["dapo"])
    assert len(list(ours(page))) > 60


def test_two_sided_clipping_is_the_dual_clip() -> None:
    """TRL's `delta` is our `dual_clip`: value and gradient, for ratios on all sides of it."""
    recipe = build("dapo", {"objective.surrogate.dual_clip": "3"})
    log_ratio = torch.linspace(-3, 3, 41, dtype=torch.float64)[None].requires_grad_()
    ratio, low, high = log_ratio.exp(), 0.8, 1.28
    for advantage in (-1.5, 0.7):
        bounded, clipped = ratio.clamp(max=3.0), ratio.clamp(low, high)
        theirs = -torch.min(bounded * advantage, clipped * advantage)
        batch = {"advantages": torch.full_like(log_ratio, advantage)}
        mine = recipe.objective.surrogate(log_ratio, Evaluation(log_ratio), batch).loss
        torch.testing.assert_close(mine, theirs)
        gradients = [
            torch.autograd.grad(x.sum(), log_ratio, retain_graph=True)[0] for x in (mine, theirs)
        ]
        torch.testing.assert_close(*gradients)


def test_the_catalog_is_what_is_looked_in() -> None:
    assert "dapo" in load_catalog()
