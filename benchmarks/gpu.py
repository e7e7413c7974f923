"""The benchmarks on one GPU, unattended and in under ten minutes.

    python benchmarks/gpu.py --out gpu.jsonl    # on a machine with a GPU
    python benchmarks/gpu.py --dry              # on a CPU, tiny shapes: does every part run?

A model of the shape of Qwen2.5-0.5B with random weights, in bf16: sampling against Hugging Face
`generate` (and vLLM where it is installed), whole steps and their memory against TRL (or, where it
isn't installed, a plain loop of generate, padded forward and backward), forward and backward
against Hugging Face with cross-entropy, and all of it against the GPU's measured limits.

Every part has a time limit; one that fails or no longer fits the budget leaves a line that says so,
and the others run. Lines are written as they come, to `--out`, or to `gpu.jsonl` in the folder that
the environment variable OUT names.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import gpu_parts
import torch
from gpu_setting import Setting, setting
from harness import Comparison, attempt, fail, machine, parse, parser
from run import table

SHARE = 0.4
"""Largest share of the budget for one part, so that a slow one leaves time for the others."""


def time_box(given: Setting, options: argparse.Namespace) -> int:
    """Run the parts until the budget is spent; how many failed or were left out."""
    end = time.monotonic() + options.budget
    missed = 0
    for name, least, part in gpu_parts.PARTS:
        left = end - time.monotonic()
        if options.parts and name not in options.parts:
            continue
        if left < least and not options.dry:
            error = f"left out: {left:.0f} s of the budget left, {least} wanted"
            fail("gpu", name, error, options.out)
            missed += 1
            continue
        limit = min(left, SHARE * options.budget)
        missed += not boxed(name, partial(part, given), limit, options)
    return missed


def boxed(
    name: str,
    part: Callable[[], Iterable[Comparison]],
    limit: float,
    options: argparse.Namespace,
) -> bool:
    """Attempt one part within its time limit, and leave no memory to the next."""
    start = time.monotonic()

    def measure() -> Iterator[Comparison]:
        with alarm(limit):
            yield from part()

    went = attempt("gpu", name, measure, options)
    print(f"{name}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return went


@contextmanager
def alarm(limit: float) -> Iterator[None]:
    """Raise TimeoutError inside the context after so many seconds."""

    def ring(*_: Any) -> None:
        raise TimeoutError(f"stopped after {limit:.0f} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(limit, 1.0))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and print a table; the exit code is 1 only if not one part gave a figure."""
    made = parser(__doc__)
    made.add_argument("--dry", action="store_true", help="tiny shapes, on a CPU if need be")
    made.add_argument("--budget", type=float, default=540, help="seconds in all")
    made.add_argument("--parts", nargs="+", choices=[name for name, _, _ in gpu_parts.PARTS])
    options = parse(made, arguments)
    options.quick = options.quick or options.dry
    options.dtype = "bfloat16"
    if not (torch.cuda.is_available() or options.dry):
        print("no GPU here: use --dry to try the script on the CPU", file=sys.stderr)
        return 2
    options.out = options.out or Path(os.environ.get("OUT", ".")) / "gpu.jsonl"
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text("", encoding="utf-8")
    print(json.dumps(machine(options.dtype)), file=sys.stderr, flush=True)
    missed = time_box(setting(options), options)
    text = options.out.read_text(encoding="utf-8")
    print(table([json.loads(line) for line in text.splitlines()]))
    return 1 if missed == len(options.parts or gpu_parts.PARTS) else 0


if __name__ == "__main__":
    sys.exit(main())
