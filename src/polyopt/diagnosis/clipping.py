"""Signs about the clip range."""

from __future__ import annotations

from polyopt.diagnosis.evidence import Evidence
from polyopt.diagnosis.flags import FEWER_PASSES, LOWER_RATE, WIDER_ABOVE, WIDER_BELOW
from polyopt.diagnosis.signs import Symptom, sign, sureness


@sign(
    "clip-saturation",
    harm=2,
    ideas=("cispo", "gppo", "clip-higher", "gspo"),
    remedy="take fewer steps on a batch or lower --lr; cispo keeps the gradient of clipped tokens.",
    flags=(FEWER_PASSES, LOWER_RATE),
)
def clip_saturation(run: Evidence) -> Symptom | None:
    """A large share of tokens is outside the clip range and trains nothing."""
    high, low = run.late("clip/high"), run.late("clip/low")
    if high is None or low is None or high + low < 0.3:
        return None
    return Symptom(
        f"{high + low:.0%} of trained tokens are clipped and get no gradient",
        sureness(high + low, 0.25, 0.4),
        {"clip/high": high, "clip/low": low},
        run.late_steps(),
    )


@sign(
    "one-sided-clipping",
    harm=2,
    ideas=("clip-higher", "bapo", "dcpo", "dual-clip"),
    remedy="widen the side that clips (clip-higher does for the upper one), or let bapo balance "
    "the two.",
    flags=(WIDER_ABOVE, WIDER_BELOW, LOWER_RATE),
)
def one_sided_clipping(run: Evidence) -> Symptom | None:
    """Clipping takes gradients of one sign only, so the update is lopsided."""
    high, low = run.late("clip/high"), run.late("clip/low")
    if high is None or low is None or high + low < 0.02:
        return None
    if run.part("objective.ratio") not in (None, "token-ratio"):
        return None  # whole completions are clipped at once: few, so by chance of one kind
    side, share = ("high", high) if high > low else ("low", low)
    lopsided = share / (high + low)
    if lopsided < 0.9:
        return None
    kind = "rewarded" if side == "high" else "blamed"
    return Symptom(
        f"{lopsided:.0%} of the clipped tokens are {kind} ones ({share:.1%} of all): the clip "
        "range takes one side's gradient",
        sureness(lopsided, 0.85, 0.96),
        {"clip/high": high, "clip/low": low},
        run.late_steps(),
        WIDER_ABOVE if side == "high" else WIDER_BELOW,
    )
