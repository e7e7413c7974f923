"""Option values as they are typed, read as the type a data set's configuration declares."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from polyopt.errors import DataError, did_you_mean

_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def parse_query(spec: str) -> tuple[str, dict[str, str]]:
    """`name?a=1&b=x` as (`name`, {a: "1", b: "x"}).

    Raises:
        DataError: A part of the query without `=`.
    """
    name, _, query = spec.partition("?")
    options: dict[str, str] = {}
    for item in filter(None, query.split("&")):
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise DataError(f"task {spec!r}: {item!r} is not OPTION=VALUE, as in {name}?size=100.")
        options[key.strip()] = value.strip()
    return name, options


def merge_options(spec: str, inline: Mapping[str, str], more: Mapping[str, Any]) -> dict[str, Any]:
    """Options of the spec and of `--task-option` together.

    Raises:
        DataError: One option with two values.
    """
    for key in inline.keys() & more.keys():
        if inline[key] != str(more[key]):
            raise DataError(
                f"task {spec!r}: option {key!r} is {inline[key]!r} in the spec and {more[key]!r} "
                "in --task-option: give it once."
            )
    return {**inline, **more}


def check_known(spec: str, options: Mapping[str, Any], known: Sequence[str]) -> None:
    """Fail on the first option that isn't known.

    Raises:
        DataError: Names the option, the nearest known ones and all of them.
    """
    for key in options:
        if key not in known:
            near = did_you_mean(key, known)
            every = "" if near.startswith("known") else f" All: {', '.join(known)}."
            raise DataError(f"task {spec!r} has no option {key!r}: {near}{every}")


def read_options(spec: str, config: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as the types that a configuration dataclass declares.

    Raises:
        DataError: An unknown option, or a value of another type.
    """
    names = [field.name for field in dataclasses.fields(config)]
    check_known(spec, options, names)
    declared = typing.get_type_hints(config)
    values = {}
    for key, value in options.items():
        try:
            values[key] = _read(value, declared[key]) if isinstance(value, str) else value
        except (ValueError, TypeError):
            raise DataError(
                f"task {spec!r}: option {key}={value!r} is not {_type_name(declared[key])}. "
                f"Options: {', '.join(names)}."
            ) from None
    return values


def _read(text: str, declared: Any) -> Any:
    """One value; ValueError if the text doesn't say such a thing."""
    origin = typing.get_origin(declared)
    if origin in (typing.Union, types.UnionType):
        inner = [kind for kind in typing.get_args(declared) if kind is not types.NoneType]
        return None if text.lower() in ("none", "null") else _read(text, inner[0])
    if origin is typing.Literal:
        if text not in typing.get_args(declared):
            raise ValueError(text)
        return text
    if declared is bool:
        if text.lower() not in _TRUTH:
            raise ValueError(text)
        return _TRUTH[text.lower()]
    if declared in (int, float, str):
        return declared(text)
    if (origin or declared) in (list, tuple, Sequence):
        return _read_sequence(text, declared, origin or declared)
    raise ValueError(text)


def _read_sequence(text: str, declared: Any, kind: Any) -> Any:
    """`[1, 2]` as JSON, else values separated by commas."""
    element = (*typing.get_args(declared), str)[0]
    if text.startswith("["):
        items = json.loads(text)
    else:
        items = [_read(item.strip(), element) for item in text.split(",") if item.strip()]
    return tuple(items) if kind is tuple else list(items)


def _type_name(declared: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    if typing.get_origin(declared) is typing.Literal:
        return f"one of {', '.join(map(str, typing.get_args(declared)))}"
    inner = [kind for kind in typing.get_args(declared) if kind is not types.NoneType]
    if typing.get_origin(declared) in (typing.Union, types.UnionType) and len(inner) == 1:
        return f"{_type_name(inner[0])} or none"
    return names.get(declared, f"a value that can be typed here as {declared}")
