"""Signs that the reward doesn't measure what it should."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from polyopt.diagnosis.evidence import Change, Evidence, LoggedRollout, known, mean
from polyopt.diagnosis.signs import Symptom, sign, sureness
from polyopt.rewards.answers import marked_answer

Z95 = 1.96


@sign(
    "reward-terms-disagree",
    harm=3,
    ideas=("kl-in-reward", "adaptive-kl"),
    remedy="lower the weight of the term that rises (--reward 0.1*NAME), or pay it for right "
    "answers only; kl-in-reward holds the policy near the model it was.",
    flags=("--reward 0.1*NAME",),
)
def reward_terms_disagree(run: Evidence) -> Symptom | None:
    """The reward rises through a term that has nothing to do with being right."""
    reward, accuracy = run.change("reward/mean"), run.change("accuracy")
    if reward is None or accuracy is None:
        return None
    fell = accuracy.z < -3 and accuracy.gain < -0.03
    if not fell and (reward.z < 5 or reward.gain < 0.05):
        return None
    if accuracy.late > 0.9 or (accuracy.z > 1.5 and accuracy.gain > 0.02):
        return None
    terms = rising_terms(run)
    name, term = max(terms.items(), key=lambda item: item[1].gain, default=("", accuracy))
    if term.gain < 4 * accuracy.gain or not name:
        return None
    return Symptom(
        f"{name} rose by {term.gain:.2f} (the whole reward by {reward.gain:.2f}), while accuracy "
        f"went from {accuracy.early:.2f} to {accuracy.late:.2f}",
        0.9 if fell else sureness(term.z, 3, 12),
        {"reward gain": reward.gain, f"{name} gain": term.gain, "accuracy gain": accuracy.gain},
        run.steps(),
        f"--reward 0.1*{name.removeprefix('reward/')}",
    )


def rising_terms(run: Evidence) -> dict[str, Change]:
    """Reward terms other than correctness that rose clearly."""
    names = dict.fromkeys(name for row in run.metrics for name in row if name.startswith("reward/"))
    right = run.course("accuracy")
    found = {}
    for name in names:
        term = run.change(name)
        if name in ("reward/mean", "reward/accuracy") or term is None or run.course(name) == right:
            continue
        if term.z > 4 and term.gain > 0.05:
            found[name] = term
    return found


@sign(
    "heldout-flat",
    harm=3,
    ideas=("k3", "kl-in-reward", "greso"),
    remedy="train on more problems, look at what right rollouts do in the report (a verifier that "
    "can be fooled?), and stop earlier (--eval-every N shows where).",
    flags=("--eval-every 10",),
)
def heldout_flat(run: Evidence) -> Symptom | None:
    """Accuracy in training rose and on held-out problems it didn't."""
    judged = [row for row in run.evals if known(row.get("pass@1"))]
    if len(judged) < 2 or (judged[-1].get("unscored") or 0.0) > 0.1:
        return None  # what nobody could score is wrong held out, and left out in training
    # Of a run under way, training has gone on since the last evaluation.
    until = Evidence([row for row in run.metrics if row["step"] <= judged[-1]["step"]])
    train = until.change("accuracy")
    if train is None:
        return None
    rise = train.gain
    if train.z < 3 or train.gain < 0.1:
        # The first window of a fast run already holds what was learned; its first steps don't.
        rise = train.late - mean(until.course("accuracy")[:3])
        if rise < 0.3:
            return None
    first, last = judged[0], judged[-1]
    gain = last["pass@1"] - first["pass@1"]
    error = math.hypot(_error(first), _error(last))
    z = (rise - gain) / error if error > 0 else 0.0
    if gain > 0.25 * rise or z < 2.2:
        return None
    return Symptom(
        f"accuracy in training rose by {rise:.2f}, held-out pass@1 went from "
        f"{first['pass@1']:.2f} to {last['pass@1']:.2f}",
        sureness(z, 1.5, 4.0),
        {"train gain": rise, "held-out gain": gain, "standard errors": z},
        (int(first["step"]), int(last["step"])),
    )


def _error(row: Mapping[str, Any]) -> float:
    """Standard error of an evaluation's pass@1, from its interval or its prompts."""
    low, high = row.get("pass@1/low"), row.get("pass@1/high")
    if low is not None and high is not None:
        return float(high - low) / (2 * Z95)
    p, n = row["pass@1"], max(row.get("prompts", 1.0), 1.0)
    return math.sqrt(max(p * (1 - p), 0.25 / n) / n)


@sign(
    "verifier-suspect",
    harm=3,
    ideas=("noisy-verifier", "s-grpo-noise"),
    remedy="look at these completions: the verifier is random, or reads something else than the "
    "answer (--reward names another); noisy-verifier corrects for a known rate of errors.",
    flags=("--reward math",),
)
def verifier_suspect(run: Evidence) -> Symptom | None:
    """The same answer to the same prompt was judged both right and wrong."""
    rows = [row for row in run.rollouts if row.accuracy is not None]
    same, total = split_verdicts(rows, lambda row: row.completion.strip())
    if same:
        where = same[0]
        return Symptom(
            f"{len(same)} of {total} completions that occur again for their prompt were judged "
            f"both right and wrong, such as {where.completion.strip()[:60]!r}",
            sureness(len(same) / total, 0.0, 0.05),
            {"split": len(same), "repeated": total},
            (same[0].step, same[-1].step),
        )
    complete = [row for row in rows if row.finish != "length"]
    marked, total = split_verdicts(complete, lambda row: marked_answer(row.completion) or "")
    if len(marked) < 3 or len(marked) < 0.1 * total:
        return None
    return Symptom(
        f"{len(marked)} of {total} final answers that occur again for their prompt were judged "
        f"both right and wrong, such as {marked_answer(marked[0].completion)!r}",
        sureness(len(marked) / total, 0.1, 0.5),
        {"split": len(marked), "repeated": total},
        (marked[0].step, marked[-1].step),
    )


def split_verdicts(
    rows: Sequence[LoggedRollout], answer: Callable[[LoggedRollout], str]
) -> tuple[list[LoggedRollout], int]:
    """First rollouts of answers that were judged both ways, and how many answers occur again."""
    alike: dict[tuple[str, str], list[LoggedRollout]] = defaultdict(list)
    for row in rows:
        if text := answer(row):
            alike[row.prompt_id + "\n" + row.prompt, text].append(row)
    repeated = [group for group in alike.values() if len(group) > 1]
    split = [group[0] for group in repeated if len({row.right for row in group}) > 1]
    return split, len(repeated)
