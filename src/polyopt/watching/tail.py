"""`Tail`: the new lines of a growing file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Tail:
    """Reads each line of a file once; a last line that has no end yet is left for later.

    A file that was replaced or cut (a resumed run drops what it will write again) is read from its
    start.
    """

    path: Path
    _file: int = -1
    _read: int = 0

    def lines(self) -> tuple[bool, list[bytes]]:
        """Whether the file begins anew, and its lines since the last call."""
        try:
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                anew = status.st_ino != self._file or status.st_size < self._read
                if anew:
                    self._file, self._read = status.st_ino, 0
                file.seek(self._read)
                text = file.read()
        except FileNotFoundError:
            anew = self._file >= 0
            self._file, self._read = -1, 0
            return anew, []
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        return anew, [line for line in whole.split(b"\n") if line.strip()]
