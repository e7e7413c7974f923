"""Orders in which a task's prompts come up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from polyopt.parts import part
from polyopt.seeding import generator


@part("prompts.source")
@dataclass
class ShuffledEpochs:
    """Every prompt once per epoch, in an order drawn anew for each epoch.

    The order is derived from (run seed, epoch), so the whole memory is an epoch and a position:
    resuming inside a later epoch continues that epoch's order.
    """

    epoch: int = field(default=0, init=False, repr=False)
    position: int = field(default=0, init=False, repr=False)

    def next_index(self, size: int, seed: int) -> int:
        """Index of the next prompt."""
        if self.position >= size:
            self.epoch, self.position = self.epoch + 1, 0
        self.position += 1
        return int(_order(size, seed, self.epoch)[self.position - 1])

    def state_dict(self) -> dict[str, Any]:
        """Epoch and position."""
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the saved epoch and position."""
        self.epoch, self.position = state["epoch"], state["position"]


@lru_cache(maxsize=1)
def _order(size: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """Prompts in the order of an epoch."""
    return generator(seed, "prompts", "epoch", epoch).permutation(size)
