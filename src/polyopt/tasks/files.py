"""Data files as rows: JSON lines, JSON, CSV, TSV and Parquet."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from polyopt.errors import DataError, UserError
from polyopt.tasks.rows import Row


def read_rows(path: str | Path) -> list[Row]:
    """All records of a data file, in order, each with its line number (Parquet: row number).

    Raises:
        DataError: No such file, an unknown kind, a record that can't be read, or no records.
        UserError: Parquet without pyarrow.
    """
    path = Path(path)
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(
            f"{path}: files of kind {path.suffix or 'without a suffix'!r} aren't read; known: "
            f"{', '.join(READERS)}."
        )
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "no such file"
        raise DataError(f"{path}: {what} (looked in {Path.cwd()}).")
    rows = reader(path)
    if not rows:
        raise DataError(f"{path} is empty: it has no records. Each record is one prompt.")
    return rows


def _json_lines(path: Path) -> list[Row]:
    rows = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        place = f"{path} line {number}"
        text = _decoded(line, place).strip()
        if not text:
            continue
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
            raise DataError(
                f"{place} is not JSON ({reason}): {_start(text)}. Each line of such a file is one "
                'JSON object, as {"prompt": "...", "answer": "..."}.'
            ) from None
        rows.append(_record(value, place))
    return rows


def _json(path: Path) -> list[Row]:
    """A list of objects; a `.json` file that is really JSON lines is read as such."""
    text = _decoded(path.read_bytes(), str(path))
    if not text.strip():
        return []
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        if _looks_like_lines(text):
            return _json_lines(path)
        line = error.lineno if isinstance(error, json.JSONDecodeError) else 1
        shown = text.splitlines()[line - 1] if line <= len(text.splitlines()) else ""
        raise DataError(
            f"{path} line {line} is not JSON ({error}): {_start(shown.strip())}. The file is a "
            "list of objects, or one object a line."
        ) from None
    if not isinstance(value, list):
        if _looks_like_lines(text):
            return _json_lines(path)
        raise DataError(
            f"{path} holds one {type(value).__name__}, not a list of records: "
            f"{_start(text.strip())}. Write a list of objects, or one object a line."
        )
    return [_record(one, f"{path} record {i}") for i, one in enumerate(value, start=1)]


def _looks_like_lines(text: str) -> bool:
    """Whether the first line is a whole object of its own."""
    try:
        return isinstance(json.loads(text.strip().split("\n", 1)[0]), dict)
    except (ValueError, RecursionError):
        return False


def _separated(delimiter: str) -> Callable[[Path], list[Row]]:
    def read(path: Path) -> list[Row]:
        lines = _decoded(path.read_bytes(), str(path)).splitlines(keepends=True)
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        rows: list[Row] = []
        start = 1
        try:
            header = [name.strip() for name in next(reader, [])]
            start = reader.line_num + 1
            for fields in reader:
                if fields:
                    rows.append(_fields_row(fields, header, f"{path} line {start}"))
                start = reader.line_num + 1
        except csv.Error as error:
            shown = _start("".join(lines[start - 1 : start]).strip())
            raise DataError(
                f"{path} line {start} is garbled ({error}): {shown}. Look for a quote that isn't "
                "closed, or double quotes inside a field that aren't doubled."
            ) from None
        return rows

    return read


def _fields_row(fields: list[str], header: list[str], place: str) -> Row:
    if len(fields) != len(header):
        raise DataError(
            f"{place} has {len(fields)} fields where the header has {len(header)} "
            f"({', '.join(header)}): {_start(' | '.join(fields))}. Put quotes around fields that "
            "contain the separator."
        )
    return Row(place, dict(zip(header, fields, strict=True)))


def _parquet(path: Path) -> list[Row]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError(
            f"{path}: reading Parquet needs pyarrow, which isn't installed: "
            "pip install 'polyopt[data]'."
        ) from None
    try:
        records: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(
            f"{path} can't be read as Parquet ({str(error).splitlines()[0]}): write it anew."
        ) from error
    return [Row(f"{path} row {i}", record) for i, record in enumerate(records, start=1)]


def _record(value: object, place: str) -> Row:
    if not isinstance(value, Mapping):
        raise DataError(
            f"{place} is of type {type(value).__name__}, not an object: {_start(repr(value))}. "
            'Each record is an object such as {"prompt": "...", "answer": "..."}.'
        )
    return Row(place, value)


def _decoded(data: bytes, place: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        where = place if " line " in place else f"{place} line {line}"
        near = data[max(error.start - 20, 0) : error.start + 20].decode("utf-8", "replace")
        raise DataError(
            f"{where} is not UTF-8 text (byte 0x{data[error.start]:02x}): {_start(near)}. Save the "
            "file as UTF-8."
        ) from None


def _start(text: str, limit: int = 60) -> str:
    return repr(text if len(text) <= limit else text[:limit] + "...")


READERS: dict[str, Callable[[Path], list[Row]]] = {
    ".jsonl": _json_lines,
    ".json": _json,
    ".csv": _separated(","),
    ".tsv": _separated("\t"),
    ".parquet": _parquet,
}
"""Readers by the suffix of the file."""
