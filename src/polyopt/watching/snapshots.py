"""`Snapshots`: a run as the page shows it, numbered, so that a browser asks for what is new."""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from polyopt.report.html import page_data, rollout_texts
from polyopt.report.rollout_sample import page_json
from polyopt.watching.follower import RunFollower
from polyopt.watching.state import RunState, state_of

SHARE_OF_TIME = 0.05
"""Most of one core's time that looking at the run may take from it."""


@dataclass(frozen=True)
class Snapshot:
    """What the page shows at one moment.

    Attributes:
        version: Grows with every change of what is shown.
        state: Where the run is.
        data: What `page_data` gives.
        texts: The rollouts' JSON by name in the page.
        keys: What each text is recognised by, by name.
        born: The version in which a text appeared, by its key.
    """

    version: int
    state: RunState
    data: Mapping[str, Any]
    texts: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    born: Mapping[str, int] = field(default_factory=dict)


class Snapshots:
    """Looks at a run when somebody asks, but not more often than sensible.

    Args:
        run: The run folder.
        every: Least seconds between two looks; they get rarer where a look takes long.
    """

    def __init__(self, run: Path, every: float) -> None:
        self.every = every
        self.server = secrets.token_hex(8)
        self._follower = RunFollower(run)
        self._lock = threading.Lock()
        self._next_look = 0.0
        self._newest = self._look(None)

    def newest(self) -> Snapshot:
        """The run as it is now, or was `every` seconds ago."""
        with self._lock:
            if time.monotonic() >= self._next_look:
                started = time.monotonic()
                self._newest = self._look(self._newest)
                ended = time.monotonic()
                self._next_look = ended + max(self.every, (ended - started) / SHARE_OF_TIME)
            return self._newest

    def _look(self, last: Snapshot | None) -> Snapshot:
        news = self._follower.look()
        state = state_of(self._follower)
        if last is not None and not news:
            return replace(last, state=state)
        version = 0 if last is None else last.version + 1
        groups, pairs = self._follower.groups, self._follower.pairs
        series = self._follower.metrics.series()
        data = page_data(self._follower.record, series, groups, pairs)
        texts = rollout_texts(groups, pairs)
        keys = {name: _key(text) for name, text in texts.items()}
        before = last.born if last is not None else {}
        born = {key: before.get(key, version) for key in keys.values()}
        return Snapshot(version, state, data, texts, keys, born)

    def start_of_page(self, snapshot: Snapshot) -> str:
        """JSON with which a new page begins to ask."""
        return page_json(
            {
                "server": self.server,
                "version": snapshot.version,
                "every": self.every,
                "state": asdict(snapshot.state),
                "keys": snapshot.keys,
            }
        )

    def news(self, snapshot: Snapshot, since: int | None) -> str:
        """JSON of what changed after a page's version; of everything without one."""
        answer: dict[str, Any] = {
            "server": self.server,
            "version": snapshot.version,
            "state": asdict(snapshot.state),
        }
        if since != snapshot.version:
            known = -1 if since is None else since
            answer |= {
                "data": snapshot.data,
                "keys": snapshot.keys,
                "texts": {
                    key: snapshot.texts[name]
                    for name, key in snapshot.keys.items()
                    if snapshot.born[key] > known
                },
            }
        return json.dumps(answer, separators=(",", ":"), allow_nan=False)


def _key(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
