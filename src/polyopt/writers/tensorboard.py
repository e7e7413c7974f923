"""`TensorBoardWriter`: event files in `RUN/tensorboard/`."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from pathlib import Path

from polyopt.writers.event_file import EventFile
from polyopt.writers.protocol import RunStart


class TensorBoardWriter:
    """Writes TensorBoard's event files; view them with `tensorboard --logdir runs`.

    A resumed run adds a file, which begins by taking back what earlier files say about steps after
    its checkpoint; TensorBoard then shows each point once.
    """

    def __init__(self) -> None:
        self._file: EventFile | None = None

    def start(self, start: RunStart) -> None:
        """Open a new file."""
        folder = start.folder / "tensorboard"
        self._file = EventFile(folder / _file_name(folder))
        if start.resumed:
            self._file.session_start(start.kept + 1)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """One event, with a value per metric."""
        if self._file is not None:
            self._file.scalars(step, metrics)

    def close(self, finished: bool) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def _file_name(folder: Path) -> str:
    """A new name; TensorBoard reads the files of a folder in the order of their names."""
    number = len(list(folder.glob("*tfevents*")))
    return f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{number:04d}"
