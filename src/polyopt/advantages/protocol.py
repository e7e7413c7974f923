"""What an advantage part is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from polyopt.batch import Batch


class AdvantagePart(Protocol):
    """Assigns credit, or changes the credit that the parts before it assigned.

    Rows whose reward is unknown never reach a part, so `batch.rewards` holds no NaN here. The
    result is taken as a constant (no gradient) and is zero outside `batch.mask`.
    """

    def __call__(self, advantages: Float[Tensor, "N T"], batch: Batch) -> Float[Tensor, "N T"]: ...


@runtime_checkable
class Provider(Protocol):
    """An advantage part that adds columns for later stages, such as a value method's returns."""

    def provide(self, batch: Batch) -> Mapping[str, Tensor]:
        """Columns by name, each with one entry per row."""
