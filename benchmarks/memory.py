"""Peak memory of one training step against TRL, and as the group grows.

    python benchmarks/memory.py

Each measurement is a fresh process that loads the model and takes two steps (the optimizer's
moments are there from the end of the first); its peak resident memory is read from the system.
TRL is measured twice on workload (a): keeping activations, as in `step.py`, and recomputing them,
which is its default. The last line is our side alone: a group of 64 rollouts against one of 8, both
with one token budget (`micro_tokens`), which either fills more than once.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from harness import Comparison, Side, attempt_all, parse, parser
from workers import Worker, installed_trl
from workloads import Workload, save_model

GOAL, FLAT_GOAL = 4.0, 1.1
STEPS = 2
WORKLOADS = {
    "a": Workload("smollm2", 4, 8, 173, 64),
    "long": Workload("smollm2", 4, 8, 512, 128, peer_rows=8),
}
QUICK = {
    "a": Workload("embedded", 2, 4, 12, 4),
    "long": Workload("embedded", 2, 4, 24, 8, peer_rows=4),
}
GROUPS = (8, 16, 32, 64)
GROUP_BASE = Workload("smollm2", 1, 8, 173, 64, micro_tokens=512)
QUICK_GROUPS = (2, 8)
QUICK_BASE = Workload("embedded", 1, 2, 12, 4, micro_tokens=12)
PEERS = {"trl": "", "trl-checkpointing": ", activations recomputed"}


def peak(side: str, work: Workload, folder: Path, repeats: int) -> list[float]:
    """Peak resident memory in GB of fresh processes that take steps on one side."""
    found = []
    for _ in range(repeats):
        with Worker(side, work, folder) as worker:
            found.append([worker.step().peak_gb for _ in range(STEPS)][-1])
    return found


def against_trl(
    name: str, work: Workload, peers: Sequence[str], options: argparse.Namespace
) -> list[Comparison]:
    """Peaks of both sides on one workload, a line for each way in which TRL is run."""
    trl = installed_trl()
    with tempfile.TemporaryDirectory() as scratch:
        folder = save_model(work.model, Path(scratch))
        ours = Side("polyopt", peak("polyopt", work, folder, options.repeats))
        made = []
        for peer in peers:
            note = "" if trl else "TRL isn't installed"
            other = None
            if trl:
                try:
                    found = peak(peer, work, folder, options.repeats)
                    other = Side(trl + PEERS[peer], found)
                except RuntimeError as error:
                    note = str(error)
            made.append(
                Comparison(
                    "memory",
                    f"{name} against {peer}",
                    "GB",
                    ours,
                    other,
                    other.median / ours.median if other else None,
                    goal=GOAL,
                    note=note,
                    details={"sizes": str(work), "peer_rows": work.peer_rows},
                )
            )
    return made


def over_groups(base: Workload, groups: Sequence[int], options: argparse.Namespace) -> Comparison:
    """Peak with the largest group against that with the smallest."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = save_model(base.model, Path(scratch))
        peaks = {
            n: peak("polyopt", dataclasses.replace(base, rollouts=n), folder, options.repeats)
            for n in groups
        }
    first, last = Side(f"group of {groups[0]}", peaks[groups[0]]), peaks[groups[-1]]
    ours = Side(f"polyopt, group of {groups[-1]}", last)
    return Comparison(
        "memory",
        f"group of {groups[-1]} against {groups[0]}",
        "GB",
        ours,
        first,
        ours.median / first.median,
        goal=FLAT_GOAL,
        better="lower",
        details={
            "sizes": str(base),
            "peak_gb": {str(n): Side("", p).record()["median"] for n, p in peaks.items()},
        },
    )


def measure(name: str, options: argparse.Namespace) -> Iterator[Comparison]:
    """The comparisons of one workload, or those of groups."""
    if name == "groups":
        base, groups = (QUICK_BASE, QUICK_GROUPS) if options.quick else (GROUP_BASE, GROUPS)
        yield over_groups(base, groups, options)
    else:
        work = (QUICK if options.quick else WORKLOADS)[name]
        peers = list(PEERS) if name == "a" else ["trl"]
        yield from against_trl(name, work, peers, options)


def main(arguments: Sequence[str] | None = None) -> bool:
    """Print the JSON lines; whether all went well."""
    made = parser(__doc__, repeats=1)
    made.add_argument("--workload", nargs="*", choices=[*WORKLOADS, "groups"])
    options = parse(made, arguments)
    names = options.workload or [*WORKLOADS, "groups"]
    measures = {name: partial(measure, name, options) for name in names}
    return attempt_all("memory", measures, options)


if __name__ == "__main__":
    sys.exit(not main())
