"""`RunState`: where a run is, in a word and a sentence."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Literal

from polyopt.report.sparkline import duration
from polyopt.run_folder import in_use
from polyopt.watching.follower import RunFollower

Phase = Literal["loading", "waiting", "running", "ending", "finished", "stopped"]
RECENT = 20
"""Steps whose time is taken to go on."""


@dataclass(frozen=True)
class RunState:
    """Where a run is.

    Attributes:
        phase: `loading` (no `run.json` yet), `waiting` (before the first step), `running`,
            `ending` (after the last step), `finished`, or `stopped` before its last step.
        words: The same as a sentence.
        live: A process is running it.
        step: Training steps done.
        age: Seconds since its last step was logged; None before the first.
    """

    phase: Phase
    words: str
    live: bool
    step: int
    age: float | None


def state_of(follower: RunFollower) -> RunState:
    """Where the run is, by its folder's lock and by what was logged."""
    live = in_use(follower.run)
    planned = follower.about.get("steps")
    steps = planned if isinstance(planned, int) else None
    done = follower.metrics.steps[-1] if follower.metrics.steps else 0
    phase = _phase(live, done, steps, bool(follower.about))
    return RunState(phase, _words(phase, done, steps, follower), live, done, _age(follower))


def _phase(live: bool, done: int, steps: int | None, described: bool) -> Phase:
    if steps is not None and done >= steps:
        return "ending" if live else "finished"
    if not live:
        return "stopped"
    if done:
        return "running"
    return "waiting" if described else "loading"


def _words(phase: Phase, done: int, steps: int | None, follower: RunFollower) -> str:
    of = f"step {done:,}" + (f" of {steps:,}" if steps is not None else "")
    left = _seconds_left(done, steps, follower)
    return {
        "loading": "loading the model and the task",
        "waiting": "waiting for the first step",
        "running": of + (f", about {duration(left)} left" if left is not None else ""),
        "ending": f"all {done:,} steps done, last evaluation",
        "finished": f"finished after step {done:,}",
        "stopped": f"stopped after {of}; go on with polyopt train --resume {follower.run}",
    }[phase]


def _seconds_left(done: int, steps: int | None, follower: RunFollower) -> float | None:
    """Steps to go at the pace of the last ones."""
    recent = follower.metrics.columns.get("seconds/step", [])[-RECENT:]
    known = [value for value in recent if value is not None]
    if steps is None or not known:
        return None
    return (steps - done) * math.fsum(known) / len(known)


def _age(follower: RunFollower) -> float | None:
    try:
        return max(0.0, time.time() - (follower.run / "metrics.jsonl").stat().st_mtime)
    except FileNotFoundError:
        return None
