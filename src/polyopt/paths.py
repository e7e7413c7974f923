"""Read and replace values inside nested frozen dataclasses by dotted path."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, TypeVar

from polyopt.errors import RecipeError, did_you_mean
from polyopt.parts import name_of

T = TypeVar("T")


def read(root: object, path: str) -> Any:
    """The value at a full path such as `objective.surrogate` or `advantages.shaping[0].top`."""
    value: Any = root
    for step in _steps(path):
        value = value[step] if isinstance(step, int) else getattr(value, step)
    return value


def assign(root: T, path: str, value: object, *, parse: bool = False) -> T:
    """A copy of `root` with another value at `path`.

    Args:
        root: A frozen dataclass.
        path: A full path, or with `parse` also a short one: middle names may be left out where
            one value only can be meant, and a chain member may be named (`ktae.top`).
        value: The new value; with `parse`, a string is read as the type of the old value.
        parse: Treat path and value as typed by a person.

    Raises:
        RecipeError: No such path, several such paths, or a value of another type.
    """
    if parse:
        path = resolve(root, path)
        if isinstance(value, str):
            value = parse_value(path, value, read(root, path))
    return _assign(root, _steps(path), value)  # type: ignore[no-any-return]


def leaves(root: object, prefix: str = "") -> dict[str, Any]:
    """Every number, text or empty slot inside `root`, by full path."""
    found: dict[str, Any] = {}
    if isinstance(root, tuple):
        for i, item in enumerate(root):
            found |= leaves(item, f"{prefix}[{i}]")
    elif dataclasses.is_dataclass(root) and not isinstance(root, type):
        for f in dataclasses.fields(root):
            if f.name in ("origins", "ideas") or not f.init:
                continue
            found |= leaves(getattr(root, f.name), f"{prefix}.{f.name}" if prefix else f.name)
    elif root is None or isinstance(root, bool | int | float | str):
        found[prefix] = root
    return found


def resolve(root: object, path: str) -> str:
    """The full path that a person's path means.

    Raises:
        RecipeError: It means nothing, or more than one thing.
    """
    known = leaves(root)
    if path in known or path in optional_parts(root):
        return path
    wanted = path.replace("-", "_").split(".")
    matches = [full for full in known if _is_short_for(wanted, full, root)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise RecipeError(f"--set {path}: could mean {' or '.join(matches)}; write the whole path.")
    raise RecipeError(f"--set {path}: there is no such value; {_path_hint(path, known)}")


def optional_parts(root: object, prefix: str = "") -> set[str]:
    """Full paths of the slots that hold a part and may be empty: `--set objective.kl=none`."""
    found: set[str] = set()
    if dataclasses.is_dataclass(root) and not isinstance(root, type):
        for f in dataclasses.fields(root):
            value, path = getattr(root, f.name), f"{prefix}.{f.name}" if prefix else f.name
            if dataclasses.is_dataclass(value) and f.default is None:
                found.add(path)
            found |= optional_parts(value, path)
    return found


def _path_hint(path: str, known: dict[str, Any]) -> str:
    last = path.split(".")[-1]
    same_end = [full for full in known if full.split(".")[-1] == last]
    if same_end:
        return f"did you mean {' or '.join(sorted(same_end)[:3])}?"
    tails = {full.split(".")[-1]: full for full in known}
    near = did_you_mean(last, tails)
    if near.startswith("did you mean"):
        names = near.removeprefix("did you mean ").rstrip("?").split(" or ")
        return f"did you mean {' or '.join(tails[name] for name in names)}?"
    return did_you_mean(path, known)


def parse_value(path: str, text: str, old: object) -> object:
    """Read `text` as the type of the value it replaces; an empty slot takes a number or text.

    Raises:
        RecipeError: The text isn't of that type.
    """
    lowered = text.strip().lower()
    if dataclasses.is_dataclass(old) and lowered not in ("none", "null"):
        raise RecipeError(
            f"--set {path}={text}: this is a part ({name_of(old)}), not a number. Only `none` can "
            "be set, which removes it; choose another part by an idea (`polyopt recipes`)."
        )
    try:
        if lowered in ("none", "null") and not isinstance(old, str):
            return None
        if isinstance(old, bool):
            return {"true": True, "false": False}[lowered]
        if isinstance(old, int):
            return int(text)
        if isinstance(old, float):
            return float(text)
        if old is None:
            return float(text) if re.fullmatch(r"[-+.\deE]+", text) else text
        return text
    except (ValueError, KeyError):
        kind = {"bool": "true or false", "int": "a whole number", "float": "a number"}
        raise RecipeError(
            f"--set {path}={text}: expected {kind[type(old).__name__]}, such as {old!r}."
        ) from None


def _steps(path: str) -> list[str | int]:
    steps: list[str | int] = []
    for name, index in re.findall(r"([A-Za-z_]\w*)|\[(\d+)\]", path):
        steps.append(name if name else int(index))
    return steps


def _assign(value: Any, steps: list[str | int], new: object) -> Any:
    if not steps:
        return new
    head, rest = steps[0], steps[1:]
    if isinstance(head, int):
        return tuple(_assign(v, rest, new) if i == head else v for i, v in enumerate(value))
    return dataclasses.replace(value, **{head: _assign(getattr(value, head), rest, new)})


def _is_short_for(wanted: list[str], full: str, root: object) -> bool:
    """Whether the names of a short path occur in a full one, in order, the last one last."""
    names: list[str] = []
    position = ""
    for step in _steps(full):
        position += f"[{step}]" if isinstance(step, int) else f".{step}" if position else step
        owner = read(root, position)
        names.append(step if isinstance(step, str) else str(step))
        if not isinstance(owner, bool | int | float | str | tuple | None):
            names.append(name_of(owner).replace("-", "_"))
    if not names or names[-1] != wanted[-1]:
        return False
    rest = iter(names)
    return all(any(step == name for name in rest) for step in wanted)
