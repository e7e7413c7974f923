"""`RunFolder`: what a run leaves on disk, and who may write there."""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from polyopt.errors import UserError


class RunFolder:
    """A run's folder, locked while the run goes on.

    Holds `run.json` (resolved recipe and settings), `metrics.jsonl` (a line per step),
    `evals.jsonl`, `rollouts/`, `tensorboard/`, `checkpoints/`, `model/` (final) and `report.html`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None

    @property
    def checkpoints(self) -> Path:
        """Where the checkpoints are."""
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """Where the final model is, in Hugging Face format."""
        return self.path / "model"

    def open(self, *, resume: bool) -> RunFolder:
        """Create or re-enter the folder, and lock it.

        Raises:
            UserError: Unwritable, in use by another process, holds a run already, or (to resume)
                holds none.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / "run.lock").open("a")
        except OSError as error:
            raise UserError(
                f"can't write to the run folder {self.path} ({error.strerror}): choose another "
                "with --run FOLDER."
            ) from None
        if not _locked(self._lock):
            raise UserError(
                f"the run folder {self.path} is in use by another process: wait for it, or choose "
                "another with --run FOLDER."
            )
        exists = (self.path / "run.json").is_file()
        if exists and not resume:
            raise UserError(
                f"{self.path} already holds a run: continue it with `polyopt train --resume "
                f"{self.path}`, or choose another folder with --run FOLDER."
            )
        if resume and not exists:
            raise UserError(f"{self.path} holds no run to resume (no run.json).")
        return self

    def close(self) -> None:
        """Give the folder free; one in which no run began is removed again."""
        if self._lock is None:
            return
        self._lock.close()
        self._lock = None
        if {path.name for path in self.path.iterdir()} == {"run.lock"}:
            (self.path / "run.lock").unlink()
            self.path.rmdir()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Replace a JSON file of the folder in one piece."""
        draft = self.path / f".{name}.draft"
        draft.write_text(json.dumps(finite(value), indent=1) + "\n", encoding="utf-8")
        os.replace(draft, self.path / name)

    def append(self, name: str, row: Mapping[str, Any]) -> None:
        """Add one line to a `.jsonl` file."""
        with (self.path / name).open("a", encoding="utf-8") as file:
            file.write(json_line(row))

    def write_rollouts(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write one file of sampled rollouts, in one piece."""
        folder = self.path / "rollouts"
        folder.mkdir(exist_ok=True)
        draft = folder / f".{name}.draft"
        draft.write_text("".join(json_line(row) for row in rows), encoding="utf-8")
        os.replace(draft, folder / f"{name}.jsonl")

    def forget_after(self, step: int) -> None:
        """Drop what a killed run logged after the checkpoint it resumes from."""
        for name in ("metrics.jsonl", "evals.jsonl"):
            path = self.path / name
            if path.is_file():
                kept = [row for row in read_rows(path) if row["step"] <= step]
                draft = path.with_suffix(".draft")
                draft.write_text("".join(json_line(row) for row in kept), encoding="utf-8")
                os.replace(draft, path)
        for path in (self.path / "rollouts").glob("step-*.jsonl"):
            if int(path.stem.removeprefix("step-")) > step:
                path.unlink()


def in_use(path: Path) -> bool:
    """Whether a process is running the run in this folder."""
    try:
        with (path / "run.lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _locked(lock: IO[str]) -> bool:
    """Take the lock; whoever only looks (`in_use`) holds it for less than these attempts."""
    for _ in range(5):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)
        else:
            return True
    return False


def new_run_path(expression: str, root: Path = Path("runs")) -> Path:
    """A fresh folder name: `runs/20261201-101500-dapo+ktae`."""
    words = "".join(c if c.isalnum() or c in "+-_." else "-" for c in expression)
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{words}"
    path, number = root / stem, 2
    while path.exists():
        path, number = root / f"{stem}-{number}", number + 1
    return path


def json_line(row: Mapping[str, Any]) -> str:
    """One line of JSON; NaN and infinity, which JSON doesn't know, become null."""
    return json.dumps(finite(row)) + "\n"


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a `.jsonl` file; a last line that was cut off by a crash is left out."""
    rows = []
    for line in path.read_text(encoding="utf-8").split("\n"):
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


def finite(value: Any) -> Any:
    """A value as it is written: NaN and infinity, which JSON doesn't know, become None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
