"""Seconds per step of our trainer as tokens, group and model grow: linear, and without cliffs?

    python benchmarks/scaling.py --plot scaling

Three sweeps, each varying one number: new tokens per rollout, rollouts per prompt, and weights of
the model. To each, seconds = a + b x is fitted by least squares of relative errors (so that short
steps count as much as long ones). The ratio of a line is the largest of measured over fitted; above
1.3 there is a cliff. With `--plot`, a picture of each: seconds with the fit, and the residuals.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from harness import Comparison, Side, attempt_all, parse, parser, seconds
from workloads import Workload, llama, policy_of, trainer_of

from polyopt.report.intervals import Estimate
from polyopt.report.picture import Picture

CLIFF = 1.3
LINE, POINT = "#1f66d0", "#d9591a"


@dataclass(frozen=True)
class Sweep:
    """Workloads along one axis.

    Attributes:
        axis: What grows.
        unit: Of the axis.
        points: Value on the axis, and the workload there.
    """

    axis: str
    unit: str
    points: Sequence[tuple[float, Workload]]


@dataclass(frozen=True)
class Fit:
    """seconds = a + b x.

    Attributes:
        a: Seconds at 0.
        b: Seconds per unit.
        over: Measured over fitted, at each point.
    """

    a: float
    b: float
    over: Sequence[float]


def sweeps(quick: bool, model: str) -> list[Sweep]:
    """The three sweeps."""
    lengths: Sequence[int] = (8, 16, 32, 64, 128, 256)
    groups: Sequence[int] = (8, 16, 24, 32, 48, 64)
    shapes: Sequence[str] = ("64x2x2048", "128x4x2048", "192x6x2048", "256x8x2048", "384x8x2048")
    base = Workload(model, 4, 8, 64, 32)
    if quick:
        base, lengths, groups = Workload("embedded", 2, 4, 8, 4), (2, 4, 8), (2, 4, 8)
        shapes = ("32x1x320", "32x2x320", "64x2x320")
    long = [dataclasses.replace(base, new_tokens=n) for n in lengths]
    wide = [dataclasses.replace(base, rollouts=n) for n in groups]
    big = [dataclasses.replace(base, model=shape, prompt_tokens=8) for shape in shapes]
    return [
        Sweep("tokens", "tokens", [(w.distinct_tokens, w) for w in long]),
        Sweep("group", "rollouts per prompt", [(w.rollouts, w) for w in wide]),
        Sweep("model", "thousand weights", [(_weights(w.model) / 1e3, w) for w in big]),
    ]


def _weights(shape: str) -> int:
    hidden, layers, vocabulary = (int(part) for part in shape.split("x"))
    return sum(p.numel() for p in llama(hidden, layers, vocabulary).parameters())


def step_seconds(work: Workload, options: argparse.Namespace) -> list[float]:
    """Times of steps of a fresh trainer, after a first one."""
    trainer = trainer_of(policy_of(work.model), work)
    times = [seconds(trainer.step, options.clock) for _ in range(options.repeats + 1)]
    del trainer
    gc.collect()
    return times[1:]


def fit(x: Sequence[float], y: Sequence[float]) -> Fit:
    """Least squares of the relative errors of a + b x."""
    xs, ys = np.asarray(x, float), np.asarray(y, float)
    columns = np.stack([np.ones_like(xs), xs], axis=1) / ys[:, None]
    (a, b), *_ = np.linalg.lstsq(columns, np.ones_like(ys), rcond=None)
    return Fit(float(a), float(b), (ys / (a + b * xs)).tolist())


def measure(sweep: Sweep, options: argparse.Namespace) -> list[Comparison]:
    """One sweep: its fit, and the worst point."""
    x = [value for value, _ in sweep.points]
    samples = [step_seconds(work, options) for _, work in sweep.points]
    y = [statistics.median(times) for times in samples]
    line = fit(x, y)
    worst = max(range(len(x)), key=lambda i: line.over[i])
    if options.plot is not None:
        draw(sweep, y, line, Path(f"{options.plot}-{sweep.axis}.svg"))
    rows = [
        {
            "x": v,
            "sizes": str(w),
            "seconds": Side("", t).record()["median"],
            "over_fit": round(o, 3),
        }
        for (v, w), t, o in zip(sweep.points, samples, line.over, strict=True)
    ]
    made = Comparison(
        "scaling",
        sweep.axis,
        "s",
        Side(f"step at {x[worst]:g} {sweep.unit}", samples[worst]),
        Side("linear fit", [line.a + line.b * x[worst]]),
        line.over[worst],
        goal=CLIFF,
        better="lower",
        details={"a": line.a, "b": line.b, "cliffs": _cliffs(x, line), "points": rows},
    )
    return [made]


def _cliffs(x: Sequence[float], line: Fit) -> list[float]:
    return [value for value, over in zip(x, line.over, strict=True) if over > CLIFF]


def draw(sweep: Sweep, y: Sequence[float], line: Fit, out: Path) -> None:
    """The sweep as a picture: measured and fitted seconds, and measured over fitted."""
    x = [round(value) for value, _ in sweep.points]
    facts = f"{sweep.points[0][1]} to {sweep.points[-1][1]}"
    caption = f"x: {sweep.unit}; line: a + b x; right: measured / fitted, with the cliff at {CLIFF}"
    picture = Picture(f"Seconds per step by {sweep.axis}", facts, caption)
    left = picture.panel(0, 2, "seconds", share=False)
    fitted = [line.a + line.b * value for value in x]
    left.scale(x, [*y, *fitted], along="x")
    left.line(x, list[float | None](fitted), LINE)
    left.points({v: Estimate(s, None, None) for v, s in zip(x, y, strict=True)}, POINT, labels=True)
    right = picture.panel(1, 2, "measured / fitted", share=False)
    right.scale(x, [*line.over, 1.0, CLIFF], along="x")
    right.line([x[0], x[-1]], [1.0, 1.0], LINE)
    right.line([x[0], x[-1]], [CLIFF, CLIFF], POINT)
    over = {v: Estimate(o, None, None) for v, o in zip(x, line.over, strict=True)}
    right.points(over, POINT, labels=False)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(picture.text(), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> bool:
    """Print a JSON line for each sweep; whether all went well."""
    made = parser(__doc__, repeats=2)
    made.add_argument("--model", default="smollm2", help="of the sweeps over tokens and group")
    made.add_argument("--sweep", nargs="+", choices=["tokens", "group", "model"])
    made.add_argument("--plot", help="write PLOT-AXIS.svg for each sweep")
    options = parse(made, arguments)
    measures = {
        sweep.axis: partial(measure, sweep, options)
        for sweep in sweeps(options.quick, options.model)
        if options.sweep is None or sweep.axis in options.sweep
    }
    return attempt_all("scaling", measures, options)


if __name__ == "__main__":
    sys.exit(not main())
