"""Signs that rollouts teach nothing."""

from __future__ import annotations

import math

from polyopt.diagnosis.evidence import Evidence, mean, variance, width
from polyopt.diagnosis.flags import MORE_ROLLOUTS
from polyopt.diagnosis.signs import Symptom, sign, sureness


def learned(run: Evidence) -> bool:
    """Whether nearly all is right now, and wasn't at the start."""
    accuracy = run.change("accuracy", least=2)
    return accuracy is not None and accuracy.late > 0.9 and accuracy.gain > 0.1


@sign(
    "advantage-collapse",
    harm=3,
    ideas=("dynamic-sampling", "greso", "ngrpo", "rl-zvp"),
    remedy="add dynamic-sampling or greso, sample more with --rollouts, or choose problems nearer "
    "to the model's ability.",
    flags=(MORE_ROLLOUTS,),
)
def advantage_collapse(run: Evidence) -> Symptom | None:
    """Hardly any group holds both right and wrong rollouts, and not because all was learned."""
    signal = run.late("groups/signal")
    if signal is None or signal >= 0.1 or learned(run):
        return None
    message = (
        f"only {signal:.0%} of groups hold both right and wrong rollouts; the others teach nothing"
    )
    evidence = {"groups/signal": signal}
    accuracy = run.late("accuracy")
    if accuracy is not None:
        evidence["accuracy"] = accuracy
    return Symptom(message, sureness(signal, 0.1, 0.03), evidence, run.late_steps())


@sign(
    "rollout-silencing",
    harm=2,
    ideas=("dynamic-sampling", "greso", "cispo", "rl-zvp"),
    remedy="skip prompts without signal before they cost anything with greso, or refill the batch "
    "with dynamic-sampling; polyopt show lists the parts of `selection` that leave rollouts out.",
    flags=(MORE_ROLLOUTS,),
)
def rollout_silencing(run: Evidence) -> Symptom | None:
    """The share of sampled rollouts that contribute a gradient has shrunk (Shuffle-R1's term).

    Where the policy got better, groups that are all right now are its merit, and only rollouts that
    are left out of groups with signal count.
    """
    success = run.change("accuracy")
    shares = contributing(run, of_signal=success is not None and success.gain > 0.1)
    if len(shares) < 10 or run.solved():
        return None
    count = width(len(shares))
    early, late = mean(shares[:count]), mean(shares[-count:])
    error = math.sqrt((variance(shares[:count]) + variance(shares[-count:])) / count)
    if early < 0.2 or late >= 0.3 or late > 0.6 * early or early - late < 3 * error:
        return None
    return Symptom(
        f"{late:.0%} of the sampled rollouts contribute a gradient, {early:.0%} did at the start",
        sureness(late / early, 0.6, 0.3),
        {"contributing/early": early, "contributing/late": late},
        run.late_steps(),
    )


def contributing(run: Evidence, *, of_signal: bool) -> list[float]:
    """Share of each step's rollouts that were trained and are in a group with signal.

    Args:
        run: The record.
        of_signal: Of the rollouts in groups with signal, instead of all that were sampled.
    """
    per_prompt = run.number("per_prompt")
    shares = []
    for row in run.metrics:
        signal, groups = row.get("groups/signal"), row.get("groups/sampled")
        if signal is None or (of_signal and not signal):
            continue
        trained = row.get("rollouts/trained", 0.0 if "tokens/sampled" in row else None)
        unknown = per_prompt is None or not groups or trained is None
        share = 1.0 if unknown else trained / (groups * per_prompt)
        shares.append(min(share / signal, 1.0) if of_signal else min(share, signal))
    return shares


@sign(
    "unscored",
    harm=3,
    remedy="look at the reward function: it gave no number for them (the log of rollouts shows "
    "which, with --log-rollouts-every 1 all of them).",
    flags=("--log-rollouts-every 1",),
)
def unscored(run: Evidence) -> Symptom | None:
    """Many rollouts got no reward."""
    share = run.late("unscored")
    if share is None or share <= 0.1:
        return None
    message = f"{share:.0%} of rollouts could not be scored and train nothing"
    return Symptom(message, sureness(share, 0.05, 0.2), {"unscored": share}, run.late_steps())
