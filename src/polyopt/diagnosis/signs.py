"""What a sign is, the register of signs, and `diagnose`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from polyopt.diagnosis.evidence import Evidence
from polyopt.diagnosis.flags import Flag, flag_text

FAMILIES = ("signal", "exploration", "lengths", "sampling", "clipping", "steps", "judging", "data")
"""Modules of this package that register signs."""

SERIOUS, LIKELY = 0.8, 0.5
"""Confidence from which a finding is serious (the command fails), and from which it is likely."""


@dataclass(frozen=True)
class Symptom:
    """What a sign saw.

    Attributes:
        message: What is wrong, in one sentence with its numbers.
        confidence: How sure the sign is, from 0 to 1.
        evidence: The numbers behind it, by name.
        steps: First and last training step that it was seen in.
        flag: A flag that fits what was seen better than those of the sign; empty if none does.
    """

    message: str
    confidence: float
    evidence: Mapping[str, float] = field(default_factory=dict)
    steps: tuple[int, int] = (0, 0)
    flag: str = ""


@dataclass(frozen=True)
class Finding:
    """What is wrong with a run, and what to do about it.

    Attributes:
        name: The sign that found it.
        harm: 3 if the run can't learn or its numbers can't be believed, 2 if it learns worse, 1 if
            it should be known.
        symptom: What was seen.
        ideas: Ideas of the catalog that address it.
        remedy: What to do.
        flags: Flags of `polyopt train` to try, with the run's own numbers, the best first.
    """

    name: str
    harm: int
    symptom: Symptom
    ideas: tuple[str, ...]
    remedy: str
    flags: tuple[str, ...] = ()

    @property
    def level(self) -> str:
        """`serious`, `likely` or `hint`, by confidence."""
        confidence = self.symptom.confidence
        return "serious" if confidence >= SERIOUS else "likely" if confidence >= LIKELY else "hint"

    @property
    def warning(self) -> str:
        """One line for the display of a run under way."""
        flag = f" ({self.flags[0]})" if self.flags else ""
        return f"{self.name}: {self.symptom.message}; {self.remedy.rstrip('.')}{flag}."

    def as_json(self) -> dict[str, Any]:
        """The finding as plain values."""
        return {
            "name": self.name,
            "level": self.level,
            "confidence": round(self.symptom.confidence, 3),
            "harm": self.harm,
            "message": self.symptom.message,
            "evidence": dict(self.symptom.evidence),
            "steps": list(self.symptom.steps),
            "ideas": list(self.ideas),
            "remedy": self.remedy,
            "flags": list(self.flags),
        }


@dataclass(frozen=True)
class Sign:
    """A registered sign: a function from a run's record to a finding or None.

    Attributes:
        name: Its name.
        look: What reads the record.
        harm: How bad it is (see `Finding`).
        ideas: Ideas that address it.
        remedy: What to do.
        flags: Flags to try, the best first.
    """

    name: str
    look: Callable[[Evidence], Symptom | None]
    harm: int
    ideas: tuple[str, ...]
    remedy: str
    flags: tuple[Flag, ...] = ()

    def __call__(self, run: Evidence) -> Finding | None:
        """The finding, if the sign shows."""
        symptom = self.look(run)
        if symptom is None:
            return None
        special = (symptom.flag,) if symptom.flag else ()
        flags = (*special, *(flag_text(flag, run) for flag in self.flags))
        return Finding(self.name, self.harm, symptom, self.ideas, self.remedy, flags)


_REGISTER: dict[str, Sign] = {}


def sign(
    name: str,
    *,
    harm: int,
    remedy: str,
    ideas: tuple[str, ...] = (),
    flags: tuple[Flag, ...] = (),
) -> Callable[[Callable[[Evidence], Symptom | None]], Callable[[Evidence], Symptom | None]]:
    """Register a function as a sign; see `Sign` for the arguments."""

    def register(
        look: Callable[[Evidence], Symptom | None],
    ) -> Callable[[Evidence], Symptom | None]:
        if name in _REGISTER and _REGISTER[name].look.__module__ != look.__module__:
            raise ValueError(f"two signs are called {name!r}: rename one of them")
        _REGISTER[name] = Sign(name, look, harm, ideas, remedy, flags)
        return look

    return register


def all_signs() -> list[Sign]:
    """Every registered sign, in order of definition."""
    for family in FAMILIES:
        importlib.import_module(f"polyopt.diagnosis.{family}")
    return list(_REGISTER.values())


def diagnose(run: Evidence) -> list[Finding]:
    """What the signs find in a run's record, the worst first."""
    found = [finding for s in all_signs() if (finding := s(run)) is not None]
    order = {"serious": 0, "likely": 1, "hint": 2}
    return sorted(found, key=lambda f: (order[f.level], -f.harm, -f.symptom.confidence))


def sureness(value: float, limit: float, sure: float) -> float:
    """Confidence of a value past its limit: 0.5 at the limit, 0.95 from `sure` on, linear between.

    `sure` below `limit` means that little is the sign.
    """
    share = (value - limit) / (sure - limit)
    return 0.5 + 0.45 * min(max(share, 0.0), 1.0)
