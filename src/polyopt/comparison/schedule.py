"""`run_cells`: the unfinished cells of a matrix in parallel processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from polyopt.comparison.cells import Cell, write_json

PAUSE = 0.05


@dataclass
class Schedule:
    """Cells that wait, cells that run; at most `jobs` at once.

    Attributes:
        waiting: Cells not started.
        jobs: Most processes at once.
        say: Takes each line of progress.
        running: Cells with their processes.
    """

    waiting: list[Cell]
    jobs: int
    say: Callable[[str], None]
    running: list[tuple[Cell, subprocess.Popen[bytes]]] = field(default_factory=list)

    def go(self) -> None:
        """Run all; on Ctrl-C let each running cell save itself first."""
        total, ended = len(self.waiting), 0
        try:
            while self.waiting or self.running:
                while self.waiting and len(self.running) < self.jobs:
                    cell = self.waiting.pop(0)
                    self.running.append((cell, start(cell, self.jobs)))
                for cell, process in self._ended():
                    ended += 1
                    self.say(f"[{ended}/{total}] {cell.name}: {_settle(cell, process.returncode)}")
                time.sleep(PAUSE)
        except KeyboardInterrupt:
            self.say("\nlet the running cells finish their step and save (Ctrl-C again: at once)")
            self._stop()
            raise
        finally:
            for _, process in self.running:
                process.kill()
                process.wait()

    def _ended(self) -> list[tuple[Cell, subprocess.Popen[bytes]]]:
        done = [(cell, process) for cell, process in self.running if process.poll() is not None]
        self.running = [pair for pair in self.running if pair not in done]
        for _, process in done:
            if process.stdin is not None:
                process.stdin.close()
        return done

    def _stop(self) -> None:
        for _, process in self.running:
            process.send_signal(signal.SIGINT)
        for _, process in self.running:
            process.wait()
        self.running = []


def run_cells(cells: Sequence[Cell], jobs: int, say: Callable[[str], None]) -> None:
    """Run every cell that isn't finished; one that fails leaves its `outcome.json`."""
    waiting = [cell for cell in cells if not cell.finished]
    if len(waiting) < len(cells):
        say(f"{len(cells) - len(waiting)} of {len(cells)} cells are finished already")
    Schedule(waiting, jobs, say).go()


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start(cell: Cell, jobs: int) -> subprocess.Popen[bytes]:
    """Start a cell's process; it ends when its standard input is closed."""
    cell.folder.mkdir(parents=True, exist_ok=True)
    cell.outcome_file.unlink(missing_ok=True)
    threads = {"OMP_NUM_THREADS": str(max(1, cores() // jobs))}
    with cell.log.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "polyopt.comparison.cell_process"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=threads | dict(os.environ),
            start_new_session=True,
        )
    order = {"arguments": cell.call(), "outcome": str(cell.outcome_file)}
    try:
        assert process.stdin is not None
        process.stdin.write(json.dumps(order).encode() + b"\n")
        process.stdin.flush()
    except BrokenPipeError:
        pass  # it died at once; its exit code tells
    return process


def _settle(cell: Cell, code: int) -> str:
    """What became of a cell, in words; a process that died silently gets its outcome here."""
    outcome = cell.outcome()
    if code < 0 and not outcome:
        name = signal.Signals(-code).name
        hint = "; often too little memory: lower --jobs" if name == "SIGKILL" else ""
        outcome = {"state": "failed", "error": f"its process was ended by {name}{hint}"}
        write_json(cell.outcome_file, outcome)
    elif not outcome:
        last = _last_line(cell.log)
        outcome = {"state": "failed", "error": f"its process ended with code {code}: {last}"}
        write_json(cell.outcome_file, outcome)
    if outcome.get("state") == "finished":
        return f"finished in {outcome['seconds']:.0f} s"
    return f"FAILED, the others go on: {outcome.get('error')} (log: {cell.log})"


def _last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n") if path.is_file() else []
    return next((line for line in reversed(lines) if line.strip()), "no output")
