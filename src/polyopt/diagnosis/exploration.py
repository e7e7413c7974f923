"""Signs that the policy stopped trying other things, or tries anything."""

from __future__ import annotations

from polyopt.diagnosis.evidence import Evidence, rose
from polyopt.diagnosis.flags import LOWER_RATE, WIDER_ABOVE
from polyopt.diagnosis.signs import Symptom, sign, sureness


@sign(
    "entropy-collapse",
    harm=2,
    ideas=("clip-higher", "entropy-bonus", "clip-cov", "kl-cov"),
    remedy="add clip-higher, clip-cov or entropy-bonus, or lower --lr.",
    flags=(WIDER_ABOVE, LOWER_RATE),
)
def entropy_collapse(run: Evidence) -> Symptom | None:
    """Entropy is nearly gone while there is still much to learn."""
    entropy = run.change("entropy")
    if entropy is None or entropy.late > 0.2 or entropy.ratio > 0.2 or run.solved():
        return None
    confidence = sureness(entropy.ratio, 0.25, 0.05)
    if still_rising(run):
        confidence *= 0.6
    return Symptom(
        f"entropy fell from {entropy.early:.3g} to {entropy.late:.3g} nats a token before the task "
        "was learned",
        confidence,
        {"entropy/early": entropy.early, "entropy/late": entropy.late},
        run.late_steps(),
    )


@sign(
    "entropy-explosion",
    harm=3,
    ideas=("k2", "gspo", "overlong-filter"),
    remedy="lower --lr, drop or lower an entropy bonus, or hold the policy with k2.",
    flags=(LOWER_RATE,),
)
def entropy_explosion(run: Evidence) -> Symptom | None:
    """Entropy grows and success doesn't."""
    entropy, success = run.change("entropy"), run.change(run.success())
    if entropy is None or entropy.gain < 0.3 or entropy.ratio < 1.5:
        return None
    if rose(success):
        return None
    return Symptom(
        f"entropy rose from {entropy.early:.3g} to {entropy.late:.3g} nats a token and success "
        "didn't",
        sureness(entropy.ratio, 1.4, 2.2),
        {"entropy/early": entropy.early, "entropy/late": entropy.late},
        run.late_steps(),
    )


def still_rising(run: Evidence) -> bool:
    """Whether success in the run's last quarter is above that of the quarter before."""
    values = run.course(run.success())
    quarter = len(values) // 4
    if quarter < 2:
        return False
    last, before = values[-quarter:], values[-2 * quarter : -quarter]
    return sum(last) / quarter - sum(before) / quarter > 0.03
