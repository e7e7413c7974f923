"""`SentPoints`: which points a tracking service already has, remembered in the run folder."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path


class SentPoints:
    """A run's name at a tracking service, and the last steps that were sent there.

    A resumed run repeats the steps after its checkpoint, with the same numbers. A service that has
    a point can't take it back, so it isn't sent again.

    Args:
        path: The file that remembers.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        self.name: str = found.get("name") or secrets.token_hex(4)
        self.last: dict[str, int] = found.get("last") or {}
        self._save()

    def has(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Whether a point of this step, of training or of evaluation, was sent."""
        return step <= self.last.get(_kind(metrics), -1)

    def sent(self, step: int, metrics: Mapping[str, float]) -> None:
        """Remember a point."""
        self.last[_kind(metrics)] = step
        self._save()

    def _save(self) -> None:
        draft = self.path.with_name(f".{self.path.name}.draft")
        draft.write_text(json.dumps({"name": self.name, "last": self.last}), encoding="utf-8")
        os.replace(draft, self.path)


def _kind(metrics: Mapping[str, float]) -> str:
    return "eval" if all(name.startswith("eval/") for name in metrics) else "train"
