"""What makes the pages' commands quick enough to run at each change."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from polyopt.comparison import cell_process, schedule
from polyopt.comparison.cells import Cell


@dataclass(frozen=True)
class EndedCell:
    """A cell's process that has ended, as far as a schedule looks at it."""

    returncode: int
    stdin: None = None

    def poll(self) -> int:
        return self.returncode


@pytest.fixture(autouse=True)
def cells_run_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison's cells as calls, not processes (tests/comparison runs those)."""

    def start(cell: Cell, jobs: int) -> EndedCell:
        cell.folder.mkdir(parents=True, exist_ok=True)
        order = json.dumps({"arguments": cell.call(), "outcome": str(cell.outcome_file)})
        monkeypatch.setattr(cell_process, "_first_line", order.encode)
        monkeypatch.setattr(cell_process, "_end_with_parent", lambda: None)
        with Path(cell.log).open("a") as log, contextlib.redirect_stdout(log):
            return EndedCell(cell_process.main())

    monkeypatch.setattr(schedule, "start", start)
