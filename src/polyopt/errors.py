"""The one error a user sees: it names the thing, the value and the way out."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something the user can put right. The command line prints it without a traceback, exit 2."""


class RecipeError(UserError):
    """A recipe that can't be built: conflicting ideas, unmet needs, a bad `--set`."""


class DataError(UserError):
    """Prompts, answers or rewards that can't be used."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint listing the nearest known names, or all of them when there are few."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(near)}?"
    if len(names) <= 12:
        return f"known: {', '.join(names) or 'none'}."
    return f"known: {', '.join(names[:12])}, ... ({len(names)} in all)."
