"""Signs about the size of the policy's steps: too large, too small, or none."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median
from typing import Any

from polyopt.diagnosis.evidence import Evidence, known, mean, variance, width
from polyopt.diagnosis.flags import EARLIER_CLIPPING, HIGHER_RATE, LOWER_RATE, MORE_PENALTY
from polyopt.diagnosis.signs import Symptom, sign, sureness


@sign(
    "gradient-spikes",
    harm=2,
    ideas=("gspo", "tis", "dual-clip", "gmpo"),
    remedy="look at the rollouts of these steps; lower --lr or the norm that gradients are clipped "
    "to, or bound the ratio with gspo or dual-clip.",
    flags=(EARLIER_CLIPPING, LOWER_RATE),
)
def gradient_spikes(run: Evidence) -> Symptom | None:
    """Some steps' gradients dwarf those of the others."""
    rows = [r for r in run.metrics if known(r.get("grad_norm"))]
    # Where nothing is left to learn the usual gradient is about 0, and any signal looks huge.
    usual = [r["grad_norm"] for r in rows if has_signal(r)]
    if len(usual) < 10:
        return None
    typical = median(usual)
    harmless = float(run.number("max_grad_norm") or 0.0)  # no clipping below: an ordinary step
    spikes = [r for r in rows if r["grad_norm"] > max(8 * typical, 2 * harmless)]
    if typical <= 0 or not spikes:
        return None
    largest = max(r["grad_norm"] for r in spikes) / typical
    if len(spikes) < 2 and largest < 20:
        return None
    return Symptom(
        f"{len(spikes)} of {len(rows)} steps have a gradient above 8 times the usual "
        f"{typical:.3g}, the largest {largest:.0f} times",
        max(sureness(largest, 6, 30), sureness(len(spikes), 1, 4)),
        {"spikes": len(spikes), "grad_norm/median": typical, "largest over median": largest},
        (int(spikes[0]["step"]), int(spikes[-1]["step"])),
    )


def has_signal(row: Mapping[str, Any]) -> bool:
    """Whether at least a fifth of a step's groups had signal, as far as is known."""
    share = row.get("groups/signal")
    return share >= 0.2 if known(share) else True


@sign(
    "skipped-updates",
    harm=3,
    ideas=("dual-clip", "gmpo"),
    remedy="lower --lr, and look at the rollouts of these steps; dual-clip and gmpo bound what one "
    "token can do.",
    flags=(LOWER_RATE,),
)
def skipped_updates(run: Evidence) -> Symptom | None:
    """Gradients weren't finite."""
    share = run.late("skipped_updates")
    if share is None or share <= 0:
        return None
    return Symptom(
        f"{share:.0%} of updates were skipped because their gradient wasn't finite",
        0.95,
        {"skipped_updates": share},
        run.late_steps(),
    )


@sign(
    "kl-runaway",
    harm=2,
    ideas=("k2", "adaptive-kl", "k3-plus", "cpgd"),
    remedy="raise the penalty, let adaptive-kl steer it, or lower --lr.",
    flags=(MORE_PENALTY, LOWER_RATE),
)
def kl_runaway(run: Evidence) -> Symptom | None:
    """The policy leaves the reference, and success doesn't grow with the distance."""
    kl, success = run.change("kl_ref"), run.change(run.success())
    if kl is None or kl.late < 0.3 or kl.gain < 0.2:
        return None
    if success is not None and success.gain > 0.1 and kl.late < 5:
        return None
    return Symptom(
        f"the divergence from the reference rose from {kl.early:.3g} to {kl.late:.3g} nats a token "
        "and success didn't",
        sureness(kl.late, 0.2, 0.8),
        {"kl_ref/early": kl.early, "kl_ref/late": kl.late},
        run.late_steps(),
    )


@sign(
    "policy-collapse",
    harm=3,
    ideas=("k2", "gspo", "m2po"),
    remedy="lower --lr and go back to a checkpoint before the fall; k2 or gspo hold the policy.",
    flags=(LOWER_RATE,),
)
def policy_collapse(run: Evidence) -> Symptom | None:
    """Success was higher once, and fell."""
    name = run.success()
    values = run.course(name)
    count = width(len(values))
    if len(values) < 15 or name != "accuracy":
        return None
    windows = [values[i : i + count] for i in range(len(values) - count + 1)]
    means = [mean(window) for window in windows]
    best, last = max(means), means[-1]
    where = means.index(best)
    # The best of many windows is partly luck, so that a fall must be well beyond its error.
    error = math.sqrt((variance(windows[where]) + variance(windows[-1])) / count)
    if best - last < max(0.15, 4 * error) or last > 0.75 * best:
        return None
    return Symptom(
        f"{name} was {best:.2f} and fell to {last:.2f}",
        sureness(best - last, 0.1, 0.3),
        {f"{name}/best": best, f"{name}/late": last},
        (int(run.metrics[min(where, len(run.metrics) - 1)]["step"]), run.steps()[1]),
    )


@sign(
    "dead-learning-rate",
    harm=3,
    remedy="raise --lr (1e-6 to 1e-5 for a full model, 1e-5 to 1e-4 for LoRA), and check that the "
    "weights you train require gradients.",
    flags=(HIGHER_RATE,),
)
def dead_learning_rate(run: Evidence) -> Symptom | None:
    """There is signal, and the policy doesn't move."""
    rates, signal = run.course("lr"), run.late("groups/signal")
    if len(rates) < 10 or (signal is not None and signal < 0.1):
        return None
    evidence = {"lr": median(rates)}
    if median(rates) <= 0:
        return Symptom("the learning rate is 0", 0.99, evidence, run.steps())
    kl, moved = run.course("kl_ref"), run.course("log_ratio/abs")
    for name, values in (("kl_ref", kl), ("log_ratio/abs", moved)):
        several = name == "kl_ref" or (run.late("updates") or 0) > 1
        if len(values) >= 20 and several and max(map(abs, values[-10:])) < 1e-6:
            evidence[name] = max(map(abs, values[-10:]))
            return Symptom(_still(median(rates), name), 0.9, evidence, run.steps())
    if len(rates) >= 30 and flat(run, ("accuracy", "entropy", "length/mean", "reward/mean")):
        confidence = 0.7 if median(rates) < 1e-7 else 0.3
        return Symptom(_still(median(rates), "every metric"), confidence, evidence, run.steps())
    return None


def _still(rate: float, what: str) -> str:
    return f"at a learning rate of {rate:.2g} the policy doesn't move: {what} shows no trend"


def flat(run: Evidence, names: tuple[str, ...]) -> bool:
    """Whether none of the metrics has a trend over the run that its scatter doesn't explain."""
    trends = [abs(trend(values)) for name in names if len(values := run.course(name)) >= 20]
    return bool(trends) and max(trends) < 2.5


def trend(values: list[float]) -> float:
    """Slope of a straight line through the values, in its standard errors; 0 for a constant."""
    n, centre = len(values), mean(values)
    times = [i - (n - 1) / 2 for i in range(n)]
    spread = sum(t * t for t in times)
    slope = sum(t * v for t, v in zip(times, values, strict=True)) / spread
    rest = [v - centre - slope * t for t, v in zip(times, values, strict=True)]
    error = math.sqrt(sum(r * r for r in rest) / (n - 2) / spread)
    rounding = 1e-12 * (abs(centre) + 1)
    if abs(slope) < rounding:
        return 0.0
    return slope / max(error, rounding)
