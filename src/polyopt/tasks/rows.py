"""Rows of a data set, each with the place it comes from, and their way to `Prompt`s."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from polyopt.batch import Prompt
from polyopt.errors import DataError, did_you_mean

PROMPT_COLUMNS = ("prompt", "question", "problem", "instruction", "query", "input", "messages")
"""Names under which the prompt is looked for when no column is named."""
ANSWER_COLUMNS = (
    "answer",
    "solution",
    "target",
    "label",
    "output",
    "response",
    "reference",
    "ground_truth",
    "expected",
)
"""Names under which the answer is looked for when no column is named."""

ROLES = frozenset({"system", "user", "assistant", "tool", "developer"})


@dataclass(frozen=True)
class Row:
    """One record and where it was read (`"data.jsonl line 17"`)."""

    place: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Columns:
    """Which columns hold the prompt and the answer.

    Attributes:
        prompt: Name of the prompt column.
        answer: Name of the answer column; None if there is none.
    """

    prompt: str
    answer: str | None


def find_columns(
    rows: Sequence[Row],
    source: str,
    prompt: str | None = None,
    answer: str | None = None,
) -> Columns:
    """The named columns, or those with a usual name (`PROMPT_COLUMNS`, `ANSWER_COLUMNS`).

    Raises:
        DataError: A named column that isn't there, no prompt column, or several that could be it.
    """
    names = list(dict.fromkeys(name for row in rows for name in row.values))
    found = _column(names, source, prompt, "prompt", PROMPT_COLUMNS)
    if found is None:
        raise DataError(
            f"{source}: no column looks like the prompt (looked for {', '.join(PROMPT_COLUMNS)}); "
            f"it has {_listed(names)}. Name it with --prompt-column."
        )
    others = [name for name in names if name != found]
    return Columns(found, _column(others, source, answer, "answer", ANSWER_COLUMNS))


def _column(
    names: Sequence[str], source: str, named: str | None, what: str, usual: Sequence[str]
) -> str | None:
    if named is not None:
        if named not in names:
            raise DataError(
                f"{source} has no column {named!r} (--{what}-column); it has {_listed(names)}: "
                f"{did_you_mean(named, names)}"
            )
        return named
    fitting = [name for name in names if name.lower() in usual]
    if len(fitting) > 1:
        raise DataError(
            f"{source}: {_listed(fitting)} could each be the {what}. Say which with "
            f"--{what}-column {fitting[0]}."
        )
    return fitting[0] if fitting else None


def make_prompt(row: Row, columns: Columns, name: str) -> Prompt:
    """The `Prompt` called `name` of a row; columns that aren't used become its metadata.

    A text becomes one user message; a list of `{"role", "content"}` is taken as the chat it is.

    Raises:
        DataError: An empty or malformed prompt, or a missing answer; names the row.
    """
    value = row.values.get(columns.prompt)
    if isinstance(value, str):
        messages: tuple[Mapping[str, str], ...] = ({"role": "user", "content": value},)
    elif isinstance(value, Sequence) and not isinstance(value, bytes):
        messages = _chat(value, row, columns.prompt)
    elif is_missing(value):
        messages = ()
    else:
        raise DataError(
            f"{row.place}: the prompt (column {columns.prompt!r}) is {_brief(value)}, not text or "
            "a list of {role, content} messages."
        )
    if not any(message["content"].strip() for message in messages):
        raise DataError(
            f"{row.place}: the prompt (column {columns.prompt!r}) is empty: {_brief(value)}. Fill "
            "it in or remove the row."
        )
    used = {columns.prompt, columns.answer}
    metadata = {key: value for key, value in row.values.items() if key not in used}
    return Prompt(name, messages, _answer(row, columns.answer), metadata)


def is_missing(value: object) -> bool:
    """None, NaN, and text or a list with nothing in it."""
    if isinstance(value, float):
        return math.isnan(value)
    return value is None or (isinstance(value, str) and not value.strip()) or value == []


def _answer(row: Row, column: str | None) -> Any:
    if column is None:
        return None
    answer = row.values.get(column)
    if is_missing(answer):
        raise DataError(
            f"{row.place}: the answer (column {column!r}) is missing. Fill it in or remove the "
            "row; name another column with --answer-column."
        )
    return answer


def _chat(value: Sequence[Any], row: Row, column: str) -> tuple[Mapping[str, str], ...]:
    for i, message in enumerate(value):
        if not _is_message(message):
            raise DataError(
                f"{row.place}: message {i} of the prompt (column {column!r}) is {_brief(message)}; "
                'a message is {"role": ..., "content": "text"} with a role of '
                f"{', '.join(sorted(ROLES))}."
            )
    if value and value[-1]["role"] == "assistant":
        raise DataError(
            f"{row.place}: the prompt (column {column!r}) ends with an assistant message, which is "
            "what the model is to write. Remove it from the prompt; its content may be the answer."
        )
    return tuple({"role": m["role"], "content": m["content"]} for m in value)


def _is_message(message: object) -> TypeGuard[Mapping[str, str]]:
    return (
        isinstance(message, Mapping)
        and message.get("role") in ROLES
        and isinstance(message.get("content"), str)
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names) or "no columns"


def _brief(value: object, limit: int = 60) -> str:
    shown = repr(value)
    return shown if len(shown) <= limit else shown[:limit] + "..."
