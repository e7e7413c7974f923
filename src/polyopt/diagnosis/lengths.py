"""Signs about how long completions are."""

from __future__ import annotations

import math
from collections.abc import Sequence

from polyopt.diagnosis.evidence import Evidence, LoggedRollout, halves, mean, rose, variance
from polyopt.diagnosis.flags import CONSTANT_LENGTH, FEWER_TOKENS, MORE_TOKENS
from polyopt.diagnosis.signs import Symptom, sign, sureness

LENGTH_BIASED = ("sequence-mean-token-mean",)
"""Aggregations in which a token of a long completion weighs less than one of a short one."""


@sign(
    "truncation-bias",
    harm=3,
    ideas=("overlong-filter", "soft-overlong"),
    remedy="raise --max-tokens, or add overlong-filter.",
    flags=(MORE_TOKENS,),
)
def truncation_bias(run: Evidence) -> Symptom | None:
    """Many rollouts never reach an answer, and are punished for being long, not for being wrong.

    Where less is wrong than half of what was cut off, completions were right before they were cut.
    """
    share, accuracy = run.late("truncated"), run.late("accuracy")
    if share is None or share <= 0.2 or (accuracy is not None and 1 - accuracy < share / 2):
        return None
    evidence = {"truncated": share}
    if limit := run.number("max_tokens"):
        evidence["max_tokens"] = float(limit)
    return Symptom(
        f"{share:.0%} of rollouts are cut off at the completion limit and never reach an answer",
        sureness(share, 0.15, 0.35),
        evidence,
        run.late_steps(),
    )


@sign(
    "length-inflation",
    harm=2,
    ideas=("dr-grpo", "soft-overlong", "token-mean", "drpo"),
    remedy="add dr-grpo (or token-mean), or a price on length with soft-overlong, which acts on "
    "the last tokens before --max-tokens.",
    flags=(FEWER_TOKENS,),
)
def length_inflation(run: Evidence) -> Symptom | None:
    """Completions grow and success doesn't."""
    length, success = run.change("length/mean"), run.change(run.success())
    if length is None or rose(success):
        return None
    early = length.early
    if length.ratio < 1.5 or length.z < 4 or length.gain < 2:
        # The first window may already hold a growth that was fast; its first steps don't.
        early = mean(run.course("length/mean")[:3])
        if length.late < max(1.75 * early, early + 5):
            return None
    return Symptom(
        f"completions grew from {early:.0f} to {length.late:.0f} tokens and success didn't",
        sureness(length.late / max(early, 1e-9), 1.4, 2.0),
        {"length/early": early, "length/late": length.late},
        run.late_steps(),
    )


@sign(
    "length-biased-loss",
    harm=2,
    ideas=("constant-length", "dr-grpo", "token-mean", "delta-l"),
    remedy="divide by a constant instead of each completion's own length: add dr-grpo, "
    "constant-length or token-mean.",
    flags=(CONSTANT_LENGTH,),
)
def length_biased_loss(run: Evidence) -> Symptom | None:
    """Each completion's mean spares the tokens of long wrong ones, and wrong ones grow.

    Dr. GRPO (arXiv 2503.20783, section 3) describes the bias.
    """
    if run.part("objective.aggregation") not in LENGTH_BIASED:
        return None
    # What was cut off is wrong for being long; whether wrong ones are long is the question.
    rows = [r for r in run.trained() if r.accuracy is not None and r.finish != "length"]
    before, after = halves(rows)
    wrong, right = lengths(after, right=False), lengths(after, right=True)
    wrong_before, right_before = lengths(before, right=False), lengths(before, right=True)
    if min(map(len, (wrong, right, wrong_before, right_before))) < 8:
        return None
    ratio = mean(wrong) / max(mean(right), 1.0)
    growth = ratio / (mean(wrong_before) / max(mean(right_before), 1.0))
    if ratio < 1.3 or growth < 1.15 or mean(wrong) < 1.05 * mean(wrong_before):
        return None
    if separation(wrong, right) < 3 or log_growth_z(wrong, right, wrong_before, right_before) < 1.7:
        return None
    return Symptom(
        f"wrong completions are {ratio:.1f} times as long as right ones ({ratio / growth:.1f} "
        "times before), and the loss divides by each completion's own length",
        min(sureness(ratio, 1.2, 1.8), sureness(growth, 1.1, 1.4)),
        {"wrong over right": ratio, "the same before": ratio / growth},
        (after[0].step, after[-1].step),
    )


def lengths(rows: Sequence[LoggedRollout], *, right: bool) -> list[float]:
    """Tokens of the right or of the wrong rollouts."""
    return [float(r.length) for r in rows if r.right == right]


def separation(high: Sequence[float], low: Sequence[float]) -> float:
    """Difference of two means in standard errors (Welch's t)."""
    error = math.sqrt(variance(high) / len(high) + variance(low) / len(low))
    gain = mean(high) - mean(low)
    return gain / error if error > 0 else math.copysign(math.inf, gain)


def log_growth_z(*samples: Sequence[float]) -> float:
    """log(a / b) - log(c / d) of four means in standard errors, to first order."""
    a, b, c, d = (max(mean(s), 1e-9) for s in samples)
    error = math.sqrt(sum(variance(s) / len(s) / max(mean(s), 1e-9) ** 2 for s in samples))
    growth = math.log(a / b) - math.log(c / d)
    return growth / error if error > 0 else math.copysign(math.inf, growth)
