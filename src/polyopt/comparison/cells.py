"""`Matrix`: expressions x tasks x seeds as cells, each with a run folder of its own."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyopt.errors import UserError


@dataclass(frozen=True)
class Cell:
    """One run of the matrix, in `folder`: `run/`, `log.txt`, `outcome.json` once it ended.

    Attributes:
        expression: Its ideas.
        task: Its task.
        seed: Its seed.
        folder: Where it lives.
        arguments: Everything else that `polyopt.train` is called with.
        name: What a message calls it.
    """

    expression: str
    task: str
    seed: int
    folder: Path
    arguments: Mapping[str, Any]
    name: str

    @property
    def run(self) -> Path:
        """Its run folder."""
        return self.folder / "run"

    @property
    def log(self) -> Path:
        """What its process printed."""
        return self.folder / "log.txt"

    @property
    def outcome_file(self) -> Path:
        """Written when it ends, well or not."""
        return self.folder / "outcome.json"

    @property
    def finished(self) -> bool:
        """It ran to its end."""
        return self.outcome().get("state") == "finished" and (self.run / "run.json").is_file()

    def outcome(self) -> dict[str, Any]:
        """`outcome.json`, or nothing."""
        try:
            found = json.loads(self.outcome_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def call(self) -> dict[str, Any]:
        """Keyword arguments of `polyopt.train` that start or continue it."""
        own = {"recipe": self.expression, "task": self.task, "seed": self.seed}
        where = {"run": str(self.run), "resume": (self.run / "run.json").is_file()}
        return {**self.arguments, **own, **where}


@dataclass(frozen=True)
class Matrix:
    """What is compared, and under which arguments that all cells share."""

    expressions: tuple[str, ...]
    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    arguments: Mapping[str, Any]

    def cells(self, folder: Path) -> list[Cell]:
        """All cells, seed by seed, so that an unfinished matrix compares like with like."""
        return [
            self._cell(expression, task, seed, folder)
            for seed in self.seeds
            for task in self.tasks
            for expression in self.expressions
        ]

    def _cell(self, expression: str, task: str, seed: int, root: Path) -> Cell:
        where = f" on {task}" if len(self.tasks) > 1 else ""
        name = f"{expression}{where}, seed {seed}"
        folder = root / _place(expression, task, seed)
        return Cell(expression, task, seed, folder, self.arguments, name)

    def default_folder(self, root: Path = Path("runs")) -> Path:
        """A folder named after what all cells share: more ideas or seeds go into the same one."""
        text = json.dumps([sorted(self.tasks), self.arguments], sort_keys=True)
        return root / f"compare-{_word(self.tasks[0])[:40]}-{_digest(text)}"

    def enter(self, folder: Path) -> None:
        """Create the comparison's folder, or check that it was made with the same arguments.

        Raises:
            UserError: It holds a comparison under other arguments.
        """
        path = folder / "comparison.json"
        if path.is_file():
            before = json.loads(path.read_text(encoding="utf-8"))["arguments"]
            for name in sorted({*before, *self.arguments}):
                old, new = before.get(name), self.arguments.get(name)
                if old != new:
                    raise UserError(
                        f"{folder} holds a comparison with {name} = {old!r}, not {new!r}; runs "
                        "under different settings don't compare. Choose another folder with --out "
                        "FOLDER, or the setting of before."
                    )
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, {"arguments": self.arguments})


def cell_runs(folder: Path) -> list[Path]:
    """The run folders of a comparison's finished cells."""
    outcomes = sorted(folder.glob("cells/*/*/seed-*/outcome.json"))
    return [
        path.parent / "run"
        for path in outcomes
        if json.loads(path.read_text(encoding="utf-8")).get("state") == "finished"
    ]


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace a JSON file in one piece."""
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    os.replace(draft, path)


def _place(expression: str, task: str, seed: int) -> Path:
    return Path("cells") / _word(expression) / _word(task) / f"seed-{seed}"


def _word(text: str) -> str:
    """A file name that says what it is for, distinct for distinct texts."""
    word = "".join(c if c.isalnum() or c in "+-_." else "-" for c in text)
    short = word[-60:].lstrip("-.+")
    return short if short == text else f"{short}-{_digest(text)}"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
