"""Mathematical equality by math-verify: run by `judge_worker.py`, imports nothing of polyopt."""

from __future__ import annotations

from collections.abc import Callable


def make() -> Callable[[str, str], float | None]:
    """The verifier: (reference, completion) -> 1, 0, or None for an unreadable reference."""
    from math_verify import parse, verify

    def readable(text: str) -> list[object]:
        """The expressions in a text; what math-verify couldn't parse it leaves as strings."""
        try:
            return [e for e in parse(text, parsing_timeout=None) if not isinstance(e, str)]
        except Exception:
            return []

    def judge(reference: str, completion: str) -> float | None:
        gold = readable(_boxed(reference)) or readable(reference)
        if not gold:
            return None
        try:
            return float(verify(gold, readable(completion), timeout_seconds=None))
        except Exception:
            return 0.0

    return judge


def _boxed(text: str) -> str:
    """Bare LaTeX is only read as such inside a box."""
    return text if "$" in text or "\\boxed" in text else f"\\boxed{{{text}}}"
