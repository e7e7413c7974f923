"""Seconds of one whole GRPO step against TRL's `GRPOTrainer`.

    python benchmarks/step.py --workload a

Same model, prompts, lengths, rollouts, dtype (float32) and threads; both sample exactly so many
tokens for every rollout at temperature 1, judge them by the same reward and take one AdamW step on
all of them at once, without a KL term. Each side has a process of its own; they take steps in
turns. The first step of each is a warm-up.

| workload | model | prompts x rollouts x (prompt + new tokens) | goal |
|---|---|---|---|
| a | SmolLM2-135M | 4 x 8 x (173 + 64) | 6 |
| b | SmolLM2-135M | 4 x 8 x (1024 + 64), TRL in micro-batches that fit | 12 |
| c | the embedded model | 32 x 8 x (16 + 32) | 5 |
| d | 4 layers of 128, 49152 tokens | 32 x 8 x (24 + 24) | 5 |
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from harness import Comparison, Side, alternate, attempt_all, parse, parser
from workers import Step, Worker, installed_trl
from workloads import QUICK_STEPS, STEPS, Workload, save_model

GOALS = {"a": 6.0, "b": 12.0, "c": 5.0, "d": 5.0}


def compare(name: str, work: Workload, options: argparse.Namespace) -> list[Comparison]:
    """Both sides' seconds per step of one workload."""
    trl = installed_trl()
    sides = [s for s in ("polyopt", "trl") if options.only in (None, s)]
    if trl is None:
        sides = ["polyopt"]
    found: dict[str, list[float]] = {}
    peaks: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = save_model(work.model, Path(scratch))
        for together in [[side] for side in sides] if work.alone else [sides]:
            with ExitStack() as stack:
                workers = {s: stack.enter_context(Worker(s, work, folder)) for s in together}
                times, memory = measure(workers, options)
            found |= times
            peaks |= memory
    measured = {s: Side({"trl": trl or ""}.get(s, s), times) for s, times in found.items()}
    ours, peer = measured.get("polyopt"), measured.get("trl")
    note = "" if ours and peer else "one side only" if options.only else "TRL isn't installed"
    ratio = peer.median / ours.median if ours and peer else None
    details = {"sizes": str(work), "peer_rows": work.peer_rows, "peak_gb": peaks}
    return [
        Comparison(
            "step", name, "s", ours, peer, ratio, goal=GOALS[name], note=note, details=details
        )
    ]


def measure(
    workers: dict[str, Worker], options: argparse.Namespace
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Seconds of each side's steps in turns, and the peak of each side's memory in GB."""
    last: dict[str, Step] = {}

    def timed(side: str) -> float:
        last[side] = workers[side].step()
        return last[side].seconds[options.clock]

    found = alternate({side: lambda s=side: timed(s) for side in workers}, options.repeats)  # type: ignore[misc]
    return found, {side: round(step.peak_gb, 2) for side, step in last.items()}


def main(arguments: Sequence[str] | None = None) -> bool:
    """Print a JSON line for each workload; whether all went well."""
    made = parser(__doc__)
    made.add_argument("--workload", choices=STEPS, nargs="+", default=list(STEPS))
    made.add_argument("--only", choices=["polyopt", "trl"], help="one side alone")
    made.add_argument("--peer-rows", type=int, help="micro-batch of TRL in rows")
    options = parse(made, arguments)
    measures = {}
    for name in options.workload:
        work = (QUICK_STEPS if options.quick else STEPS)[name]
        if options.peer_rows:
            work = dataclasses.replace(work, peer_rows=options.peer_rows)
        measures[name] = partial(compare, name, work, options)
    return attempt_all("step", measures, options)


if __name__ == "__main__":
    sys.exit(not main())
