"""What a replay part is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from polyopt.batch import Batch


class ReplayBuffer(Protocol):
    """Keeps past rollouts and mixes some of them into new batches; has memory."""

    def mix(self, batch: Batch, draws: np.random.Generator) -> Batch:
        """The fresh batch with replayed rows appended; a replayed row joins its prompt's group."""

    def store(self, batch: Batch) -> None:
        """Take over what is worth keeping of a batch of fresh, scored rollouts."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...
