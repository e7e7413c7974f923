"""`WandbWriter`: a run's metrics at Weights & Biases."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from polyopt.writers.protocol import RunStart
from polyopt.writers.sent_points import SentPoints

PROJECT = "polyopt"


class WandbWriter:
    """Logs to W&B; a resumed run goes on in the same W&B run.

    W&B's own settings hold: `WANDB_PROJECT`, `WANDB_ENTITY`, `WANDB_MODE=offline`, ... The axis is
    the metric `step`, since W&B's own counter can't go back to a checkpoint.
    """

    def __init__(self) -> None:
        self._run: Any = None
        self._points: SentPoints | None = None

    def start(self, start: RunStart) -> None:
        """Create the W&B run, or enter it again."""
        import wandb

        self._points = SentPoints(start.folder / "wandb.json")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=self._points.name,
            name=start.folder.resolve().name,
            config=dict(start.description),
            dir=str(start.folder),
            resume="allow",
            settings=wandb.Settings(console="off", silent=True),
        )
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """One row of the W&B run's history."""
        if self._points is None or self._points.has(step, metrics):
            return
        self._run.log({"step": step, **metrics})
        self._points.sent(step, metrics)

    def close(self, finished: bool) -> None:
        """Send what is left, and mark the W&B run as finished or not."""
        if self._run is not None:
            self._run.finish(exit_code=0 if finished else 1)
