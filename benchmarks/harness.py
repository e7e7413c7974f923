"""What all benchmarks share: clocks, alternating measurement, and one JSON line per comparison."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
"""Wall-clock time, or processor time of all threads of the process."""
Better = Literal["higher", "lower"]


@dataclass(frozen=True)
class Side:
    """One side of a comparison: what it is called and what was measured of it."""

    name: str
    samples: Sequence[float]

    @property
    def median(self) -> float:
        """Median of the samples."""
        return statistics.median(self.samples)

    def record(self) -> dict[str, Any]:
        """As it stands in a JSON line."""
        samples = [significant(value) for value in self.samples]
        return {"name": self.name, "median": significant(self.median), "samples": samples}


@dataclass(frozen=True)
class Comparison:
    """One JSON line: ours against another side (a peer, or a limit of the machine).

    Attributes:
        benchmark: Name of the script.
        workload: What was measured, within it.
        unit: Of both sides: seconds, tokens/s, GB, ...
        ours: Our side; None if only the other was measured.
        other: What it is compared with; None if that couldn't be measured (the note says why).
        ratio: Made of the two medians so that it can be read by itself, see `better`.
        goal: Value of the ratio to reach; None if there is none.
        better: Whether a higher or a lower ratio is better.
        note: Anything that a reader has to know.
        details: Further numbers by name.
    """

    benchmark: str
    workload: str
    unit: str
    ours: Side | None
    other: Side | None
    ratio: float | None
    goal: float | None = None
    better: Better = "higher"
    note: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reached(self) -> bool | None:
        """Whether the goal is reached; None without a goal or a ratio."""
        if self.goal is None or self.ratio is None:
            return None
        return self.ratio >= self.goal if self.better == "higher" else self.ratio <= self.goal

    def record(self, options: argparse.Namespace) -> dict[str, Any]:
        """The JSON line as a dictionary."""
        return {
            "benchmark": self.benchmark,
            "workload": self.workload,
            "unit": self.unit,
            "polyopt": None if self.ours is None else self.ours.record(),
            "other": None if self.other is None else self.other.record(),
            "ratio": None if self.ratio is None else significant(self.ratio),
            "goal": self.goal,
            "better": self.better,
            "reached": self.reached,
            "quick": options.quick,
            "clock": options.clock,
            "machine": machine(getattr(options, "dtype", "float32")),
            "note": self.note,
            **self.details,
        }


def against_limit(
    benchmark: str,
    workload: str,
    unit: str,
    ours: Side,
    limit: Side,
    *,
    goal: float,
    details: Mapping[str, Any] | None = None,
) -> Comparison:
    """Our side as a share of what the machine can do."""
    return Comparison(
        benchmark,
        f"{workload} against {limit.name}",
        unit,
        ours,
        limit,
        ours.median / limit.median,
        goal=goal,
        details=details or {},
    )


def attempt(
    benchmark: str,
    workload: str,
    measure: Callable[[], Iterable[Comparison]],
    options: argparse.Namespace,
) -> bool:
    """Measure and write the lines, or a line with the error; whether it went well."""
    try:
        for comparison in measure():
            write(comparison.record(options), options.out)
    except Exception as error:
        traceback.print_exc()
        fail(benchmark, workload, f"{type(error).__name__}: {error}"[:500], options.out)
        return False
    return True


def attempt_all(
    benchmark: str,
    measures: Mapping[str, Callable[[], Iterable[Comparison]]],
    options: argparse.Namespace,
) -> bool:
    """Attempt each workload, also after one that failed; whether all went well."""
    went = [attempt(benchmark, name, measure, options) for name, measure in measures.items()]
    return all(went)


def fail(benchmark: str, workload: str, error: str, out: Path | None) -> None:
    """Write a line for what gave no figure."""
    write({"benchmark": benchmark, "workload": workload, "error": error}, out)


def write(record: Mapping[str, Any], out: Path | None) -> None:
    """Print a JSON line, and append it to the file if there is one."""
    line = json.dumps(record)
    print(line, flush=True)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def parser(doc: str | None, repeats: int = 3) -> argparse.ArgumentParser:
    """The options that all benchmarks have."""
    made = argparse.ArgumentParser(description=(doc or "").strip().splitlines()[0])
    made.add_argument("--quick", action="store_true", help="tiny sizes: seconds, figures unusable")
    made.add_argument("--repeats", type=int, default=repeats, help="counted measurements a side")
    made.add_argument("--clock", choices=CLOCKS, default="wall")
    made.add_argument("--threads", type=int, help="threads of torch (default: torch's own choice)")
    made.add_argument("--out", type=Path, help="append the JSON lines to this file too")
    return made


def parse(made: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options, with the number of threads set."""
    options = made.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    return options


def seconds(call: Callable[[], Any], clock: str = "wall") -> float:
    """Time of one call; on a GPU, until its work is done."""
    read = CLOCKS[clock]
    settle()
    start = read()
    call()
    settle()
    return read() - start


def settle() -> None:
    """Wait for the GPU, if there is one in use."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def alternate(
    sides: Mapping[str, Callable[[], float]], repeats: int, warmup: int = 1
) -> dict[str, list[float]]:
    """Measure all sides in turns, A B A B; each call measures itself. Warm-ups don't count."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(warmup + repeats):
        for name, measure in sides.items():
            found[name].append(measure())
    return {name: values[warmup:] for name, values in found.items()}


def in_turns(
    calls: Mapping[str, Callable[[], Any]], options: argparse.Namespace
) -> dict[str, list[float]]:
    """Times of all calls, measured in turns."""
    timed = {name: partial(seconds, call, options.clock) for name, call in calls.items()}
    return alternate(timed, options.repeats)


def rates(name: str, work: float, times: Sequence[float]) -> Side:
    """A side in units of work per second, from its times."""
    return Side(name, [work / time for time in times])


def significant(value: float, digits: int = 4) -> float:
    """The value to so many significant digits."""
    return float(f"{value:.{digits}g}")


def machine(dtype: str) -> dict[str, Any]:
    """What the figures belong to."""
    import transformers

    about: dict[str, Any] = {
        "processor": processor(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "memory_gb": significant(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 3),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "dtype": dtype,
    }
    if torch.cuda.is_available():
        about["gpu"] = torch.cuda.get_device_name()
    return about


def cores() -> int:
    """Processor cores that this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def processor() -> str:
    """Name of the processor."""
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8") if info.is_file() else ""
    found = re.search(r"model name\s*:\s*(.+)", text)
    return found.group(1).strip() if found else platform.processor() or platform.machine()
