"""What another trainer gives a recipe, and the error for a recipe that needs more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from polyopt.errors import UserError
from polyopt.parts import HasState, PartInfo, info_of, name_of, walk
from polyopt.paths import read
from polyopt.recipe import Recipe

HOST_STAGES = {
    "prompts": "chooses the prompts",
    "rollouts": "samples the completions",
    "replay": "keeps no past rollouts",
    "updates": "takes the optimizer steps",
}
"""Stages that another trainer does in its own way."""

RUN_STAGES = ("rewards", "selection", "advantages", "objective")
"""Stages of a recipe that run inside another trainer."""

HOST_SLOTS = (
    "prompts.source",
    "prompts.filters",
    "prompts.allocation",
    "rollouts.sampler",
    "rollouts.additions",
    "rollouts.measurements",
    "rollouts.annotations",
    "replay.buffer",
    "updates.rule",
    "updates.schedule",
    "updates.reference",
)
"""Slots in which only the default can be honoured."""


@dataclass(frozen=True)
class Host:
    """Another trainer.

    Attributes:
        name: What it is called in messages.
        columns: Columns of a batch that it can give.
        evaluation: Fields of an evaluation that it can give.
        metadata: Whether a batch has the prompts with the columns of their data set.
        texts: Whether a batch has the completions as text.
        memory: Whether prompts can be recognised when they return, and memory is saved.
    """

    name: str
    columns: frozenset[str]
    evaluation: frozenset[str] = frozenset()
    metadata: bool = False
    texts: bool = False
    memory: bool = False


TEXT_READERS = frozenset({"answer-class", "line-items"})
"""Parts that read completions as text."""


def running_parts(recipe: Recipe, stages: tuple[str, ...]) -> Iterator[tuple[str, PartInfo]]:
    """Path and declaration of each part in some stages of a recipe."""
    for path, item in walk(recipe):
        info = info_of(item)
        if info is not None and path.startswith(stages):
            yield path, info


def check(recipe: Recipe, host: Host, stages: tuple[str, ...] = RUN_STAGES) -> None:
    """Nothing, if the host gives all that those stages of the recipe need, and does the rest.

    Raises:
        UserError: It can't; the message names the part, its idea and the way out.
    """
    check_host_stages(recipe, host)
    check_needs(recipe, host, stages)
    check_memory(recipe, host, stages)


def check_host_stages(recipe: Recipe, host: Host) -> None:
    """Raise UserError for the first part in a stage that the host does in its own way."""
    base = Recipe()
    for slot in HOST_SLOTS:
        value, default = read(recipe, slot), read(base, slot)
        parts = value if isinstance(value, tuple) else () if value is None else (value,)
        usual = default if isinstance(default, tuple) else (default,)
        for i, part in enumerate(parts):
            if name_of(part) in {name_of(known) for known in usual}:
                continue
            path = f"{slot}[{i}]" if isinstance(value, tuple) else slot
            stage = slot.split(".")[0]
            raise UserError(
                f"{host.name} can't run {name_of(part)!r} ({path}, from {owner(recipe, path)}): "
                f"{host.name} {HOST_STAGES[stage]} itself. {_way_out(recipe, path)}"
            )


def check_memory(recipe: Recipe, host: Host, stages: tuple[str, ...]) -> None:
    """Raise UserError for the first part that remembers earlier steps, where nothing saves that."""
    if host.memory:
        return
    for path, item in walk(recipe):
        if path.startswith(stages) and isinstance(item, HasState):
            raise UserError(
                f"{name_of(item)!r} ({path}, from {owner(recipe, path)}) remembers earlier steps, "
                f"and {host.name} saves no such memory. {_way_out(recipe, path)}"
            )


def check_needs(recipe: Recipe, host: Host, stages: tuple[str, ...]) -> None:
    """Raise UserError for the first column or value that a part reads and nothing gives."""
    parts = list(running_parts(recipe, stages))
    have = host.columns | {name for _, info in parts for name in info.provides}
    for path, info in parts:
        for need in sorted(info.needs | ({"texts"} if info.name in TEXT_READERS else set())):
            kind, _, name = need.rpartition(":")
            given = {
                "": name in have or (name == "texts" and host.texts),
                "evaluation": name in host.evaluation,
                "metadata": host.metadata,
            }
            if not given[kind]:
                raise UserError(
                    f"{info.name!r} ({path}, from {owner(recipe, path)}) needs {need!r}, which "
                    f"{host.name} doesn't give. {_way_out(recipe, path)}"
                )


def owner(recipe: Recipe, path: str) -> str:
    """The idea that filled the slot that a path lies in, quoted; or words for the defaults."""
    for slot, origin in recipe.origins.items():
        if path == slot or path.startswith((f"{slot}.", f"{slot}[")):
            return repr(origin.idea)
    return "the defaults"


def _way_out(recipe: Recipe, path: str) -> str:
    idea = owner(recipe, path)
    drop = "Use another part" if idea == "the defaults" else f"Drop {idea} from the expression"
    return f"{drop}, or train with polyopt itself: polyopt train {recipe.name} --model M --task T"
