"""The selection field of a recipe."""

from __future__ import annotations

from dataclasses import dataclass

from polyopt.selection.protocol import RefillSize, Screen, SelectionPart
from polyopt.selection.screens import exact_refill


@dataclass(frozen=True)
class Selection:
    """The selection field of a recipe.

    Attributes:
        screens: Chain of screens on fresh rollouts, before replay and credit.
        refill: How many prompts the next round samples when screens left too few.
        parts: Chain applied after credit is assigned.
    """

    screens: tuple[Screen, ...] = ()
    refill: RefillSize = exact_refill
    parts: tuple[SelectionPart, ...] = ()

    @property
    def rounds(self) -> int:
        """Most sampling rounds per step; above 1 when a screen asks for replacements."""
        return max((getattr(screen, "max_rounds", 1) for screen in self.screens), default=1)
