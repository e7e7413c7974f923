"""`RunRecord`: what a run folder says, read with tolerance for what is missing or cut off."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyopt.errors import UserError


@dataclass(frozen=True)
class RunRecord:
    """A run folder's small files.

    Attributes:
        path: The folder.
        about: `run.json`.
        metrics: A row per training step, ascending; of several rows for a step, the last.
        evals: A row per held-out evaluation, ascending.
        unreadable: Lines that aren't JSON objects, by file name.
    """

    path: Path
    about: dict[str, Any]
    metrics: list[dict[str, Any]]
    evals: list[dict[str, Any]]
    unreadable: dict[str, int] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The recipe's expression, or the folder's name."""
        return str(self.about.get("expression") or self.path.resolve().name)


def read_run(path: Path) -> RunRecord:
    """Read `run.json`, `metrics.jsonl` and `evals.jsonl`; each may be missing.

    Raises:
        UserError: There is no such folder, or it holds none of the three.
    """
    names = ("run.json", "metrics.jsonl", "evals.jsonl")
    if not path.is_dir():
        kind = "is a file" if path.exists() else "does not exist"
        raise UserError(f"{path} {kind}: pass the run folder that `polyopt train` printed.")
    if not any((path / name).is_file() for name in names):
        raise UserError(
            f"{path} is not a run folder: it holds none of {', '.join(names)}. "
            "Pass the folder that `polyopt train` printed."
        )
    unreadable: dict[str, int] = {}
    metrics = _rows(path / "metrics.jsonl", unreadable)
    evals = _rows(path / "evals.jsonl", unreadable)
    by_step = {step: row for row in metrics if (step := step_of(row)) is not None}
    return RunRecord(
        path=path,
        about=read_about(path / "run.json", unreadable),
        metrics=[by_step[step] for step in sorted(by_step)],
        evals=sort_evals(evals),
        unreadable=unreadable,
    )


def sort_evals(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Evaluations in the order of their steps, `before` first and `after` last."""
    return sorted((row for row in rows if step_of(row) is not None), key=_eval_order)


def step_of(row: dict[str, Any]) -> int | None:
    """A row's training step, or None if it has none."""
    step = row.get("step")
    return int(step) if isinstance(step, int | float) and step == step else None


def read_objects(path: Path) -> Iterator[dict[str, Any] | None]:
    """The JSON objects of a `.jsonl` file; None for a line that isn't one.

    Lines end at line feeds only: a completion may hold other characters that
    `str.splitlines` breaks at.
    """
    with path.open("rb") as file:
        for line in file:
            if line.strip():
                yield parse_object(line)


def _rows(path: Path, unreadable: dict[str, int]) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    found = list(read_objects(path))
    rows = [row for row in found if row is not None]
    if len(rows) < len(found):
        unreadable[path.name] = len(found) - len(rows)
    return rows


def read_about(path: Path, unreadable: dict[str, int]) -> dict[str, Any]:
    """`run.json`, or nothing; a garbled one is counted as unreadable."""
    if not path.is_file():
        return {}
    about = parse_object(path.read_bytes())
    if about is None:
        unreadable[path.name] = 1
    return about or {}


def parse_object(text: bytes) -> dict[str, Any] | None:
    """A JSON object; None if the text isn't one."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _eval_order(row: dict[str, Any]) -> tuple[int, int]:
    phases = {"before": 0, "after": 2}
    return step_of(row) or 0, phases.get(str(row.get("phase")), 1)
