"""Signs that the policy that trains isn't the one that sampled."""

from __future__ import annotations

from polyopt.diagnosis.evidence import Evidence, mean
from polyopt.diagnosis.flags import FEWER_PASSES, LOWER_RATE
from polyopt.diagnosis.signs import Symptom, sign, sureness

GAP_LIMIT = 0.05
"""Nats a token between sampler and trainer from which the gradient is another policy's."""


def grew(run: Evidence) -> bool:
    """Whether the gap was clean before the first updates: then the sampler's weights are old."""
    gaps = run.course("sampler_gap")
    return bool(gaps) and gaps[0] < 0.25 * mean(gaps[-max(1, len(gaps) // 2) :])


@sign(
    "sampler-mismatch",
    harm=3,
    ideas=("tis", "sampler-ratio", "reject-mismatch", "gspo"),
    remedy="check --dtype and --temperature of sampler and trainer; tis weighs what is left of it.",
    flags=("--dtype float32",),
)
def sampler_mismatch(run: Evidence) -> Symptom | None:
    """Sampler and trainer give the same tokens other log-probabilities from the first step on."""
    gap = run.late("sampler_gap")
    if gap is None or gap <= GAP_LIMIT or grew(run):
        return None
    return Symptom(
        f"sampler and trainer disagree by {gap:.3f} nats a token: the gradient is taken at "
        "another policy than the one that sampled",
        sureness(gap, 0.03, 0.1),
        {"sampler_gap": gap, "sampler_gap/first": run.course("sampler_gap")[0]},
        run.late_steps(),
    )


@sign(
    "stale-data",
    harm=2,
    ideas=("m2po", "areal-decoupled-ppo", "tis", "cispo"),
    remedy="sync the sampler's weights more often, take fewer steps on a batch, replay younger "
    "rollouts, or correct for it with areal-decoupled-ppo or m2po.",
    flags=(FEWER_PASSES, LOWER_RATE),
)
def stale_data(run: Evidence) -> Symptom | None:
    """Rollouts come from weights that have been left far behind.

    How far is measured in nats a token, at rollouts that are some optimizer steps old; the same age
    is harmless where the policy moves little. A sampler that doesn't know the age of its weights
    shows by a gap that grows.
    """
    age = run.late("staleness/mean")
    moved = run.late("log_ratio/abs" if age is None else "staleness/drift")
    gap = run.late("sampler_gap")
    if moved is not None and gap is not None and age is not None and not grew(run):
        moved -= gap  # a sampler that never agreed: `sampler-mismatch`
    if moved is not None and moved > drift_limit(age):
        found = {"nats a token": moved, "updates a step": run.late("updates") or 0.0}
        if age is not None:
            found |= {"staleness/mean": age, "staleness/max": run.late("staleness/max") or age}
        how_old = "" if age is None else f" {age:.1f} optimizer steps old on average, and"
        return Symptom(
            f"what trains is{how_old} {moved:.2f} nats a token away from the policy",
            sureness(moved, 0.1, 0.3),
            found,
            run.late_steps(),
        )
    if gap is not None and gap > GAP_LIMIT and grew(run):
        return Symptom(
            f"the sampler agreed with the trainer at first and is {gap:.3f} nats a token off now: "
            "it samples from old weights",
            sureness(gap, 0.03, 0.1),
            {"sampler_gap": gap, "sampler_gap/first": run.course("sampler_gap")[0]},
            run.late_steps(),
        )
    return None


def drift_limit(age: float | None) -> float:
    """Nats a token from which data is stale: less where it is more than eight steps old."""
    return 0.1 if age is not None and age > 8 else 0.15
