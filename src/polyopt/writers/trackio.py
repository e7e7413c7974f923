"""`TrackioWriter`: a run's metrics in trackio's local database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from polyopt.writers.protocol import RunStart
from polyopt.writers.sent_points import SentPoints

PROJECT = "polyopt"


class TrackioWriter:
    """Logs to trackio's project `polyopt`, by default on this machine; see `trackio show`.

    trackio's own settings hold: `TRACKIO_DIR`, `TRACKIO_SPACE_ID`, `TRACKIO_SERVER_URL`. A resumed
    run goes on in the same trackio run.
    """

    def __init__(self) -> None:
        self._run: Any = None
        self._points: SentPoints | None = None

    def start(self, start: RunStart) -> None:
        """Create the trackio run, or enter it again."""
        import trackio

        self._points = SentPoints(start.folder / "trackio.json")
        self._run = trackio.init(
            project=PROJECT,
            name=f"{start.folder.resolve().name}-{self._points.name}",
            config=dict(start.description),
            resume="allow",
        )

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """One row of the trackio run."""
        if self._points is None or self._points.has(step, metrics):
            return
        self._run.log(dict(metrics), step=step)
        self._points.sent(step, metrics)

    def close(self, finished: bool) -> None:
        """Send what is left."""
        if self._run is not None:
            self._run.finish()
