"""All benchmarks one after another, their lines in one file, and a table at the end.

python benchmarks/run.py                    # what `make bench` does
python benchmarks/run.py step --clock cpu   # some of them; other options go to each
python benchmarks/run.py --table FILE       # the table of a file of lines

A benchmark that fails, or takes longer than `--limit`, leaves a line that says so, and the others
run.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import fail, machine, parse, parser

HERE = Path(__file__).parent
NAMES = ("step", "sample", "train", "memory", "scaling")
COLUMNS = ("benchmark", "workload", "polyopt", "other", "unit", "ratio", "goal", "reached")


def results_file(quick: bool) -> Path:
    """Where this machine's lines go; those of a quick run have a file of their own."""
    about = machine("float32")
    name = f"{about.get('gpu') or about['processor']}-{about['threads']}-threads"
    name += "-quick" * quick
    return HERE / "results" / (re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") + ".jsonl")


def table(lines: Sequence[dict[str, Any]]) -> str:
    """The lines as a table: medians, ratio, goal, and whether it is reached."""
    rows = [COLUMNS, *(cells(line) for line in lines)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    text = [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    notes = [f"  {x['benchmark']} {x['workload']}: {x['note']}" for x in lines if x.get("note")]
    return "\n".join([text[0], "-" * len(text[0]), *text[1:], *notes])


def cells(line: dict[str, Any]) -> tuple[str, ...]:
    """One line's cells."""
    if "error" in line:
        return (line["benchmark"], line.get("workload", ""), *["-"] * 5, line["error"][:60])
    sign = {"higher": ">=", "lower": "<="}[line["better"]]
    goal = "" if line["goal"] is None else f"{sign} {line['goal']:g}"
    reached = {True: "yes", False: "no", None: ""}[line["reached"]]
    sides = [f"{line[s]['median']:g}" if line[s] else "-" for s in ("polyopt", "other")]
    ratio = "-" if line["ratio"] is None else f"{line['ratio']:.3g}"
    return (line["benchmark"], line["workload"], *sides, line["unit"], ratio, goal, reached)


def lines_of(out: Path) -> list[dict[str, Any]]:
    """The lines of a file; none if it isn't there."""
    text = out.read_text(encoding="utf-8") if out.is_file() else ""
    return [json.loads(line) for line in text.splitlines()]


def keep_others(out: Path, names: Sequence[str]) -> None:
    """Drop the lines of the benchmarks that are about to run from the file, and keep the others."""
    out.parent.mkdir(parents=True, exist_ok=True)
    kept = [line for line in lines_of(out) if line["benchmark"] not in names]
    out.write_text("".join(f"{json.dumps(line)}\n" for line in kept), encoding="utf-8")


def run(name: str, out: Path, rest: Sequence[str], limit: float) -> bool:
    """One benchmark in a process of its own, for so many minutes at most; whether it went well."""
    options = ["--out", str(out), *rest]
    if name == "scaling":
        options += ["--plot", str(out.with_name(f"{out.stem}-scaling"))]
    print(f"== {name}", flush=True)
    command = [sys.executable, str(HERE / f"{name}.py"), *options]
    try:
        code = subprocess.run(command, timeout=60 * limit).returncode
        ended = f"ended with exit code {code}"
    except subprocess.TimeoutExpired:
        code, ended = None, f"stopped after {limit:g} minutes"
    told = any(line["benchmark"] == name and "error" in line for line in lines_of(out))
    if code is None or (code and not told):
        fail(name, "", ended, out)
    return code == 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print the table; the exit code is 1 if a benchmark failed."""
    made = parser(__doc__)
    made.set_defaults(repeats=None)
    made.add_argument("names", nargs="*", choices=[*NAMES, []], help="default: all")
    made.add_argument("--limit", type=float, default=60, help="minutes for each benchmark")
    made.add_argument("--table", type=Path, help="print the table of this file only")
    options = parse(made, arguments)
    out = options.table or options.out or results_file(options.quick)
    failed = []
    if options.table is None:
        keep_others(out, options.names or NAMES)
        rest = ["--quick"] * options.quick + ["--clock", options.clock]
        rest += ["--threads", str(options.threads)] if options.threads else []
        rest += ["--repeats", str(options.repeats)] if options.repeats else []
        names = options.names or NAMES
        failed = [name for name in names if not run(name, out, rest, options.limit)]
    print(table(lines_of(out)))
    print(f"lines: {out}" + (f"; FAILED: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
