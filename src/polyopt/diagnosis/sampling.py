"""Signs that the policy that trains isn't the one that sampled."""

from __future__ import annotations

from polyopt.diagnosis.evidence import Evidence, mean
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
    remedy="check dtype and --temperature of sampler and trainer; tis weighs what is left of it.",
    live=True,
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
    remedy="sync the sampler's weights more often, take fewer steps on a batch (--set "
    "updates.rule.epochs=1), or add areal-decoupled-ppo or m2po.",
    live=True,
)
def stale_data(run: Evidence) -> Symptom | None:
    """Rollouts come from weights that have been left far behind."""
    gap, moved = run.late("sampler_gap"), run.late("log_ratio/abs")
    if gap is not None and gap > GAP_LIMIT and grew(run):
        return Symptom(
            f"the sampler agreed with the trainer at first and is {gap:.3f} nats a token off now: "
            "it samples from old weights",
            sureness(gap, 0.03, 0.1),
            {"sampler_gap": gap, "sampler_gap/first": run.course("sampler_gap")[0]},
            run.late_steps(),
        )
    if moved is not None and moved > 0.15:
        return Symptom(
            f"the policy moves {moved:.2f} nats a token away from what it trains on",
            sureness(moved, 0.1, 0.3),
            {"log_ratio/abs": moved, "updates": run.late("updates") or 0.0},
            run.late_steps(),
        )
    return None
