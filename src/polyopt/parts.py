"""What a part is: a function, a frozen dataclass or a class with memory, and what it declares.

`@part("advantages.shaping", needs={"tokens"})` registers the class or function below it: the slot
it fills, the batch columns it reads and those it adds. Registering is also what puts a part under
the laws of `tests/laws`.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

STAGES = (
    "prompts",
    "rollouts",
    "rewards",
    "replay",
    "advantages",
    "selection",
    "objectives",
    "updates",
)
"""The eight stage packages, in the order in which a batch passes through them."""

T = TypeVar("T")


@dataclass(frozen=True)
class PartInfo:
    """What a registered part declares.

    Attributes:
        name: Kebab-case name used in `--set` paths, logs and `polyopt show`.
        slot: Slot of the recipe that it fills (`"objective.surrogate"`).
        needs: Columns it reads; facts about the prompts as `"metadata:NAME"`, fields of the
            evaluation as `"evaluation:NAME"`.
        provides: Columns it adds through `provide(batch)` or by its stage's own call.
        min_rollouts: Fewest rollouts per prompt with which it means anything.
        claims: What the method promises beyond the laws, and is tested for:
            `"zero-on-equal-rewards"` (advantages: a group of equal rewards gets exactly 0),
            `"reinforce"` (surrogates: at `logp == logp_old` the gradient is that of
            -A logp), `"couples-prompts"` (rewards: depend on other prompts of the batch).
        make: The class or function itself.
    """

    name: str
    slot: str
    needs: frozenset[str]
    provides: frozenset[str]
    min_rollouts: int
    claims: frozenset[str]
    make: Callable[..., Any]

    def example(self) -> Any:
        """The part with its default numbers."""
        return self.make() if isinstance(self.make, type) else self.make


REGISTRY: dict[str, PartInfo] = {}
"""Every registered part by `slot/name`."""


@runtime_checkable
class HasState(Protocol):
    """A part with memory: its state is saved in every checkpoint."""

    def state_dict(self) -> dict[str, Any]:
        """Everything the part remembers, as plain values, arrays and tensors."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""


def part(
    slot: str,
    *,
    name: str | None = None,
    needs: Iterable[str] = (),
    provides: Iterable[str] = (),
    min_rollouts: int = 1,
    claims: Iterable[str] = (),
) -> Callable[[T], T]:
    """Register the part below: see `PartInfo` for the arguments.

    Raises:
        ValueError: A part of that name is already registered in that slot.
    """

    def register(make: T) -> T:
        own = name or _kebab(make.__name__)  # type: ignore[attr-defined]
        declared = (frozenset(needs), frozenset(provides), min_rollouts, frozenset(claims))
        info = PartInfo(own, slot, *declared, make)  # type: ignore[arg-type]
        key = f"{slot}/{own}"
        if key in REGISTRY and REGISTRY[key].make.__qualname__ != make.__qualname__:  # type: ignore[attr-defined]
            raise ValueError(f"two parts are called {key}")
        REGISTRY[key] = info
        make.part_info = info  # type: ignore[attr-defined]
        return make

    return register


def info_of(value: object) -> PartInfo | None:
    """The declaration of a part, or None for numbers and other values."""
    found = getattr(value, "part_info", None)
    return found if isinstance(found, PartInfo) else None


def name_of(value: object) -> str:
    """A part's registered name; else the name of its function or class."""
    info = info_of(value)
    if info is not None:
        return info.name
    return _kebab(getattr(value, "__name__", type(value).__name__))


def walk(value: object, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every part inside a recipe (or part) with its path; chain members by position."""
    if info_of(value) is not None:
        yield path, value
    if isinstance(value, tuple):
        for i, item in enumerate(value):
            yield from walk(item, f"{path}[{i}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for f in dataclasses.fields(value):
            if f.name == "origins":
                continue
            child = getattr(value, f.name)
            yield from walk(child, f"{path}.{f.name}" if path else f.name)


def load_all_parts() -> dict[str, PartInfo]:
    """Import every module of every stage and return the full registry."""
    for stage in STAGES:
        package = importlib.import_module(f"polyopt.{stage}")
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"polyopt.{stage}.{module.name}")
    return REGISTRY


def _kebab(name: str) -> str:
    """`GroupZScore` -> `group-z-score`, `token_ratio` -> `token-ratio`."""
    out = []
    for i, letter in enumerate(name):
        start = letter.isupper() and i > 0
        if start and (name[i - 1].islower() or (i + 1 < len(name) and name[i + 1].islower())):
            out.append("-")
        out.append(letter.lower())
    return "".join(out).replace("_", "-")
