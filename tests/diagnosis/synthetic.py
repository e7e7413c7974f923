"""Synthetic runs: healthy courses of metrics, and known sicknesses.

A `Course` holds the latent numbers of a run (true accuracy, entropy, length, ... per step), drawn
anew for each seed. A sickness changes these latent numbers. What is logged is then drawn from them
(`synthetic_folders.py`): accuracy and groups with signal come from Bernoulli rewards of prompts of
unequal difficulty, lengths and gradient norms are log-normal. Rules may be tuned on seeds below
`HELD_OUT_SEED` only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

HELD_OUT_SEED = 300
AGGREGATIONS = ("sequence-mean-token-mean", "token-mean", "constant-length-mean")


@dataclass
class Course:
    """Latent numbers of a run; arrays have one value per step."""

    draw: np.random.Generator
    steps: int
    groups: int
    per_prompt: int
    accuracy: np.ndarray
    entropy: np.ndarray
    length: np.ndarray
    truncated: np.ndarray
    gap: np.ndarray
    clip_high: np.ndarray
    clip_low: np.ndarray
    moved: np.ndarray
    grad: np.ndarray
    grad_noise: float
    kl: np.ndarray | None
    lr: np.ndarray
    spread: float
    style: np.ndarray | None
    heldout: tuple[float, float]
    heldout_prompts: int
    wrong_length: np.ndarray
    silenced: np.ndarray
    skipped: np.ndarray
    unscored: np.ndarray
    aggregation: str
    flips: float = 0.0
    shared_prompts: int = 0
    special: str = ""
    age: np.ndarray | None = None
    drift: np.ndarray | None = None

    @property
    def time(self) -> np.ndarray:
        """0 at the first step, 1 at the last."""
        return np.linspace(0, 1, self.steps)


def healthy(seed: int) -> Course:
    """Latent numbers of a run that learns; which ones, and how fast, differ from seed to seed."""
    draw = np.random.default_rng([seed, 7])
    u = draw.uniform
    steps = int(draw.integers(40, 161))
    time = np.linspace(0, 1, steps)
    start = u(0.1, 0.6)
    gain = min(start + u(0.05, 0.45), 0.97) - start
    rise = s_curve(time, u(0.2, 0.6), u(5, 12))
    several = draw.random() < 0.5
    high = u(0.001, 0.04) if several else 0.0
    far = draw.random() < 0.5
    growth = u(0.7, 1.9 if gain > 0.15 else 1.3)
    return Course(
        draw=draw,
        steps=steps,
        groups=int(draw.choice([8, 16, 32])),
        per_prompt=int(draw.choice([4, 8, 16])),
        accuracy=start + gain * rise,
        entropy=u(0.25, 1.5) * u(0.35, 1.1) ** time,
        length=u(20, 80) * growth**time,
        truncated=u(0, 0.12) * u(0.2, 1.2) ** time,
        gap=np.full(steps, u(0.003, 0.02) if draw.random() < 0.5 else 1e-7),
        clip_high=np.full(steps, high),
        clip_low=np.full(steps, high * u(0.3, 3)),
        moved=np.full(steps, u(0.005, 0.06) if several else 0.0),
        grad=u(0.05, 2) * u(0.5, 1.5) ** time,
        grad_noise=u(0.15, 0.45),
        kl=u(0.005, 0.15) * time if far else None,
        lr=np.full(steps, 10 ** u(-6, -4.5)) * np.minimum(1, (np.arange(steps) + 1) / 5),
        spread=u(1, 4),
        style=u(0.3, 0.8) + u(0, 0.2) * rise if draw.random() < 0.5 else None,
        heldout=(start * u(0.9, 1.1), start + gain * u(0.6, 1.0)),
        heldout_prompts=int(draw.choice([50, 100, 200])),
        wrong_length=np.full(steps, u(0.9, 1.5)),
        silenced=np.zeros(steps),
        skipped=np.zeros(steps),
        unscored=np.full(steps, u(0, 0.02) if draw.random() < 0.2 else 0.0),
        aggregation=str(draw.choice(AGGREGATIONS)),
    )


def s_curve(time: np.ndarray, middle: float, slope: float) -> np.ndarray:
    """A logistic curve that is 0 at the first step and 1 at the last."""
    curve = 1 / (1 + np.exp(-(time - middle) * slope))
    return (curve - curve[0]) / (curve[-1] - curve[0])


def stalled(course: Course, share: float = 0.03) -> None:
    """Success stays where it was at the start."""
    course.accuracy = course.accuracy[0] + share * (course.accuracy - course.accuracy[0])
    course.heldout = (course.heldout[0], course.heldout[0])
    # Growing lengths or terms without success would be sicknesses of their own.
    course.length = course.length[0] * np.minimum(course.length / course.length[0], 1.25)
    if course.style is not None:
        course.style = np.full(course.steps, course.style[0])


def onset(course: Course) -> np.ndarray:
    """0 before a random step in the first 60%, then rising to 1 within the next fifth."""
    return np.clip((course.time - course.draw.uniform(0.1, 0.6)) / 0.2, 0, 1)


def too_hard(c: Course) -> None:
    stalled(c)
    c.accuracy = np.full(c.steps, c.draw.uniform(0.0, 0.006))
    c.heldout = (0.005, 0.005)


def too_easy(c: Course) -> None:
    stalled(c)
    c.accuracy = np.full(c.steps, c.draw.uniform(0.994, 1.0))
    c.heldout = (0.99, 0.99)


def silencing(c: Course) -> None:
    stalled(c, 0.3)
    c.accuracy = np.clip(c.accuracy, 0.3, 0.7)
    c.heldout = (c.accuracy[0], c.accuracy[-1])
    c.spread = 4
    c.silenced = c.draw.uniform(0.75, 0.95) * onset(c)


def entropy_collapse(c: Course) -> None:
    stalled(c, c.draw.uniform(0, 0.3))
    c.accuracy = np.minimum(c.accuracy, 0.7)
    c.entropy = c.entropy[0] * c.draw.uniform(0.02, 0.12) ** onset(c)


def entropy_explosion(c: Course) -> None:
    stalled(c)
    c.entropy = c.entropy[0] + c.draw.uniform(1.2, 4) * onset(c)
    c.accuracy = c.accuracy * (1 - c.draw.uniform(0, 0.8) * onset(c))


def length_inflation(c: Course) -> None:
    stalled(c)
    c.length = c.length[0] * c.draw.uniform(1.8, 4) ** c.time
    c.wrong_length = np.full(c.steps, 1.05)


def truncation(c: Course) -> None:
    more = c.draw.uniform(0.3, 0.8) * onset(c)
    c.truncated = c.truncated + more
    c.accuracy = c.accuracy * (1 - more)  # what is cut off isn't right
    c.heldout = (c.heldout[0], c.heldout[1] * (1 - more[-1]))
    c.length = np.full(c.steps, c.length[0])  # growth without success would be another sickness


def length_bias(c: Course) -> None:
    c.aggregation = "sequence-mean-token-mean"
    c.wrong_length = c.draw.uniform(1.0, 1.2) * c.draw.uniform(1.8, 3.5) ** c.time
    c.accuracy = np.clip(c.accuracy, 0.25, 0.7)
    c.length = np.full(c.steps, c.length[0])


def mismatch(c: Course) -> None:
    c.gap = np.full(c.steps, c.draw.uniform(0.07, 0.5))


def stale(c: Course) -> None:
    after = np.minimum(np.arange(c.steps) / c.draw.integers(3, 12), 1)
    c.gap = c.gap * 0.2 + c.draw.uniform(0.08, 0.4) * after


def old_rollouts(c: Course) -> None:
    """A sampler that lags and says so, or a replay of rollouts from long ago."""
    c.age = np.full(c.steps, c.draw.uniform(4, 40))
    c.drift = c.draw.uniform(0.2, 0.8) * np.minimum(np.arange(c.steps) / c.age[0], 1)
    c.moved, c.clip_high, c.clip_low = (np.zeros(c.steps) for _ in range(3))


def saturated_clip(c: Course) -> None:
    share, high = c.draw.uniform(0.37, 0.7), c.draw.uniform(0.3, 0.7)
    c.clip_high = np.full(c.steps, share * high)
    c.clip_low = np.full(c.steps, share * (1 - high))
    c.moved = np.full(c.steps, c.draw.uniform(0.08, 0.13))


def one_sided(c: Course) -> None:
    share = c.draw.uniform(0.03, 0.2)
    side, other = np.full(c.steps, share), np.full(c.steps, share * c.draw.uniform(0, 0.05))
    c.clip_high, c.clip_low = (side, other) if c.draw.random() < 0.5 else (other, side)
    c.moved = np.full(c.steps, c.draw.uniform(0.02, 0.08))


def spikes(c: Course) -> None:
    where = c.draw.choice(np.arange(5, c.steps), int(c.draw.integers(2, 6)), replace=False)
    c.grad[where] *= c.draw.uniform(12, 100, len(where))


def runaway_kl(c: Course) -> None:
    stalled(c, 0.1)
    c.kl = c.draw.uniform(0.6, 4) * c.time ** c.draw.uniform(1, 3)


def hacked_terms(c: Course) -> None:
    stalled(c)
    c.accuracy = c.accuracy * (1 - c.draw.uniform(0, 0.5) * onset(c))
    c.style = 0.2 + c.draw.uniform(0.3, 0.8) * onset(c)


def hacked_verifier(c: Course) -> None:
    start = c.draw.uniform(0.15, 0.5)
    c.accuracy = start + c.draw.uniform(0.25, 0.48) * onset(c)
    c.heldout = (start, start + c.draw.uniform(-0.05, 0.02))
    c.heldout_prompts = max(c.heldout_prompts, 100)


def random_verifier(c: Course) -> None:
    c.flips = c.draw.uniform(0.05, 0.3)


def dead_rate(c: Course) -> None:
    stalled(c, 0)
    c.entropy, c.length = np.full(c.steps, c.entropy[0]), np.full(c.steps, c.length[0])
    c.truncated = np.full(c.steps, c.truncated[0])
    c.grad = np.full(c.steps, c.grad[0])
    c.moved, c.clip_high, c.clip_low = (np.zeros(c.steps) for _ in range(3))
    c.kl = np.zeros(c.steps) if c.kl is not None else None
    c.style = np.full(c.steps, c.style[0]) if c.style is not None else None
    c.lr = np.full(c.steps, c.draw.choice([0.0, 1e-12, 1e-10]))


def doubled_special(c: Course) -> None:
    c.special = str(c.draw.choice(["prompt", "begin", "after"]))


def shared_prompts(c: Course) -> None:
    c.shared_prompts = int(c.draw.integers(1, 10))


def fallen(c: Course) -> None:
    good = np.maximum(c.accuracy, 0.8 * c.accuracy.max())
    stalled(c)
    c.accuracy = good * (1 - c.draw.uniform(0.55, 1.0) * onset(c))
    c.accuracy = np.maximum(c.accuracy, 0.03)
    c.heldout = (c.heldout[0], c.accuracy[-1])


def not_finite(c: Course) -> None:
    c.skipped = (c.draw.random(c.steps) < c.draw.uniform(0.3, 1.0)).astype(float)


def no_verdict(c: Course) -> None:
    c.unscored = np.full(c.steps, c.draw.uniform(0.15, 0.6))


@dataclass(frozen=True)
class Sickness:
    """How a run is made sick, what must be found, and which consequences may be found as well."""

    make: Callable[[Course], None]
    expected: str
    consequences: frozenset[str] = frozenset()


def _sickness(make: Callable[[Course], None], expected: str, *consequences: str) -> Sickness:
    return Sickness(make, expected, frozenset(consequences))


SICK = {
    s.make.__name__: s
    for s in (
        _sickness(too_hard, "advantage-collapse"),
        _sickness(too_easy, "advantage-collapse"),
        _sickness(silencing, "rollout-silencing"),
        _sickness(entropy_collapse, "entropy-collapse"),
        # A policy that becomes noise also loses what it knew, and with it the signal.
        _sickness(entropy_explosion, "entropy-explosion", "policy-collapse", "rollout-silencing"),
        _sickness(length_inflation, "length-inflation"),
        _sickness(truncation, "truncation-bias", "policy-collapse", "rollout-silencing"),
        _sickness(length_bias, "length-biased-loss"),
        _sickness(mismatch, "sampler-mismatch"),
        _sickness(stale, "stale-data"),
        _sickness(old_rollouts, "stale-data"),
        _sickness(saturated_clip, "clip-saturation"),
        _sickness(one_sided, "one-sided-clipping"),
        _sickness(spikes, "gradient-spikes"),
        _sickness(runaway_kl, "kl-runaway"),
        _sickness(hacked_terms, "reward-terms-disagree", "policy-collapse"),
        _sickness(hacked_verifier, "heldout-flat"),
        _sickness(random_verifier, "verifier-suspect"),
        _sickness(dead_rate, "dead-learning-rate"),
        _sickness(doubled_special, "special-tokens"),
        _sickness(shared_prompts, "duplicate-prompts"),
        _sickness(fallen, "policy-collapse", "rollout-silencing", "advantage-collapse"),
        _sickness(not_finite, "skipped-updates"),
        _sickness(no_verdict, "unscored"),
    )
}
