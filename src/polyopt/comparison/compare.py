"""`compare`: run a matrix of ideas and seeds, or read finished runs, and say which is better."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyopt.comparison.cells import Cell, Matrix, write_json
from polyopt.comparison.page import write_page
from polyopt.comparison.schedule import cores, run_cells
from polyopt.comparison.scores import read_scores
from polyopt.comparison.statistics import require_scipy
from polyopt.comparison.summary import Failure, Summary, summarize
from polyopt.comparison.terminal import print_summary
from polyopt.errors import UserError


@dataclass(frozen=True)
class Comparison:
    """A comparison done: its numbers, and its page."""

    summary: Summary
    page: Path


def compare(
    model: str,
    tasks: str | Sequence[str],
    expressions: Sequence[str],
    *,
    seeds: int | Sequence[int] = 5,
    folder: Path | None = None,
    jobs: int | None = None,
    **arguments: Any,
) -> Comparison:
    """Train every expression with every seed on every task, and compare.

    Each cell runs in a process of its own and has its own run folder. Called again, it leaves
    finished cells alone, resumes those that were stopped and tries failed ones again.

    Args:
        model: What `polyopt.train` takes as a string.
        tasks: A task or several, as strings.
        expressions: Sums of ideas.
        seeds: How many seeds (0, 1, ...), or which.
        folder: Where all goes; by default one under `runs/` named after model, task and settings.
        jobs: Cells that run at once; by default as many as cores, or 1 with a GPU.
        arguments: Further arguments of `polyopt.train`, the same for all cells.

    Raises:
        UserError: An argument can't be used, or no cell finished.
    """
    require_scipy()
    matrix = _matrix(model, tasks, expressions, seeds, arguments)
    folder = folder or matrix.default_folder()
    matrix.enter(folder)
    jobs = jobs if jobs is not None else _default_jobs(len(matrix.cells(folder)))
    if jobs < 1:
        raise UserError(f"--jobs is {jobs}: it must be at least 1.")
    with _alone(folder):
        return _publish(_run(matrix.cells(folder), folder, jobs), folder)


def compare_runs(paths: Sequence[Path], folder: Path | None = None) -> Comparison:
    """Compare finished runs by their folders, grouped by expression.

    Args:
        paths: Run folders; a comparison's folder stands for all its finished cells.
        folder: Where the page goes; by default here.

    Raises:
        UserError: A folder holds no finished run, or two hold the same.
    """
    require_scipy()
    return _publish(summarize(read_scores(paths)), folder or Path())


def _run(cells: Sequence[Cell], folder: Path, jobs: int) -> Summary:
    """Run what isn't finished, and sum up what is then."""
    print(f"{len(cells)} cells in {folder}, {jobs} at once", flush=True)
    try:
        run_cells(cells, jobs, lambda line: print(line, flush=True))
    except KeyboardInterrupt:
        count = sum(cell.finished for cell in cells)
        print(f"{count} of {len(cells)} cells are finished; the same command goes on from there")
        raise
    finished = [cell for cell in cells if cell.finished]
    failures = [_failure(cell) for cell in cells if not cell.finished]
    if not finished:
        reasons = "; ".join(f"{f.cell}: {f.error} (log: {f.log})" for f in failures)
        raise UserError(f"no cell finished. {reasons}")
    scores = read_scores([cell.run for cell in finished], [cell.expression for cell in finished])
    return summarize(scores, failures)


def _publish(summary: Summary, folder: Path) -> Comparison:
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "results.json", summary.as_json())
    page = write_page(summary, folder / "comparison.html")
    print_summary(summary)
    print(f"page    {page}", flush=True)
    return Comparison(summary, page)


def _matrix(
    model: str,
    tasks: str | Sequence[str],
    expressions: Sequence[str],
    seeds: int | Sequence[int],
    arguments: Mapping[str, Any],
) -> Matrix:
    from polyopt.ideas import build

    if isinstance(tasks, str):
        tasks = [tasks]
    chosen = tuple(range(max(seeds, 0))) if isinstance(seeds, int) else tuple(dict.fromkeys(seeds))
    if not chosen:
        raise UserError("--seeds is 0: it must be at least 1 (5 or more tell something).")
    shared = json.loads(json.dumps({"quiet": True, **arguments, "model": model}, default=_by_name))
    tasks = json.loads(json.dumps(list(tasks), default=_by_name))
    for expression in expressions:
        build(expression, shared.get("overrides"))
    return Matrix(tuple(dict.fromkeys(expressions)), tuple(dict.fromkeys(tasks)), chosen, shared)


def _by_name(value: object) -> str:
    """An argument as another process can be told it."""
    if isinstance(value, Path):
        return str(value)
    raise UserError(
        f"a comparison runs in other processes, so it takes models and tasks by name, not a "
        f"{type(value).__name__} in memory: save it and give its path."
    )


def _failure(cell: Cell) -> Failure:
    return Failure(cell.name, str(cell.outcome().get("error", "not run")), str(cell.log))


def _default_jobs(cells: int) -> int:
    import torch

    return 1 if torch.cuda.is_available() else min(cells, cores())


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the comparison's folder against a second process."""
    with (folder / "comparison.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(
                f"another process is running the comparison in {folder}: wait for it, or choose "
                "another folder with --out FOLDER."
            ) from None
        yield
