"""The replay field of a recipe."""

from __future__ import annotations

from dataclasses import dataclass

from polyopt.replay.protocol import ReplayBuffer


@dataclass(frozen=True)
class Replay:
    """The replay field of a recipe.

    Attributes:
        buffer: Keeps and mixes in past rollouts; None trains on fresh ones only.
    """

    buffer: ReplayBuffer | None = None
