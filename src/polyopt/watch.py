"""What to watch instead of the loss: signs that a run isn't learning as it should, said once."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

WINDOW = 10
"""Steps over which a metric is averaged before it counts as a sign."""


@dataclass(frozen=True)
class Sign:
    """A metric that has gone too far, and what it means.

    Attributes:
        metric: Name of the metric.
        limit: Where it becomes a sign.
        above: Whether too much is the sign, or too little.
        message: What it means and what to do; `{value}` is filled in.
    """

    metric: str
    limit: float
    above: bool
    message: str


SIGNS = (
    Sign(
        "truncated",
        0.2,
        True,
        "{value:.0%} of rollouts are cut off at the completion limit and never reach an answer: "
        "raise --max-tokens, or add overlong-filter.",
    ),
    Sign(
        "groups/signal",
        0.1,
        False,
        "only {value:.0%} of groups hold both right and wrong rollouts; the others teach nothing: "
        "add dynamic-sampling or greso, or choose problems nearer to the model's ability.",
    ),
    Sign(
        "sampler_gap",
        0.05,
        True,
        "sampler and trainer disagree by {value:.3f} nats a token: the gradient is taken at "
        "another policy than the one that sampled. Check dtype and temperature.",
    ),
    Sign(
        "skipped_updates",
        0.0,
        True,
        "{value:.0%} of updates were skipped because their gradient wasn't finite: lower --lr.",
    ),
    Sign(
        "unscored",
        0.1,
        True,
        "{value:.0%} of rollouts could not be scored and train nothing: look at the reward "
        "function.",
    ),
)


@dataclass
class Watch:
    """Averages metrics over some steps and names each sign once."""

    history: dict[str, deque[float]] = field(default_factory=dict)
    said: set[str] = field(default_factory=set)

    def warnings(self, step: int, metrics: Mapping[str, float]) -> list[str]:
        """Signs that show for the first time at this step."""
        found = []
        for sign in SIGNS:
            values = self.history.setdefault(sign.metric, deque(maxlen=WINDOW))
            if sign.metric in metrics:
                values.append(metrics[sign.metric])
            if len(values) < WINDOW or sign.metric in self.said:
                continue
            mean = sum(values) / WINDOW
            if (mean > sign.limit) if sign.above else (mean < sign.limit):
                self.said.add(sign.metric)
                found.append(f"step {step}: " + sign.message.format(value=mean))
        return found
