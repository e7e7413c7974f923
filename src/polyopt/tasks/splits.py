"""Held-out prompts: which they are, and that no problem is both trained on and held out."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence

from polyopt.batch import Prompt
from polyopt.errors import DataError

logger = logging.getLogger(__name__)

HELDOUT_SIZE = 200
"""Held-out prompts when nothing else is said."""
HELDOUT_SHARE = 0.2
"""Largest share of the problems that is held out when nothing else is said."""


def problem_key(text: str) -> str:
    """A hash of a problem's text, white space aside: equal for the same problem in any file."""
    return hashlib.blake2b(" ".join(text.split()).encode(errors="surrogatepass")).hexdigest()


def heldout_keys(texts: Sequence[str], source: str, size: int | None = None) -> frozenset[str]:
    """Keys of the problems to hold out: the `size` distinct ones whose hashes come first.

    The choice depends on the texts alone, not on their order, on rows that repeat a problem or on
    a run's seed, so it is the same in every run, and adding rows moves few problems.

    Args:
        texts: Text of every problem.
        source: Where they come from, for the error.
        size: How many; None holds out `HELDOUT_SIZE`, at most `HELDOUT_SHARE` of the problems.

    Raises:
        DataError: As many as there are, or more.
    """
    keys = sorted({problem_key(text) for text in texts})
    if size is None:
        size = min(HELDOUT_SIZE, max(int(len(keys) * HELDOUT_SHARE), 1), len(keys) - 1)
    if size < 0 or size >= len(keys):
        raise DataError(
            f"{source}: can't hold out {size} of {len(keys)} different problems. Choose a "
            f"--heldout-size from 0 to {len(keys) - 1}, or give a file with --heldout."
        )
    return frozenset(keys[:size])


def first_by_hash(prompts: Sequence[Prompt], size: int | None, source: str) -> list[Prompt]:
    """`size` prompts chosen by the hash of their text, in their order; None takes all.

    Raises:
        DataError: There aren't that many.
    """
    if size is None:
        return list(prompts)
    if not 0 <= size <= len(prompts):
        raise DataError(
            f"{source}: can't take {size} held-out prompts of {len(prompts)}. Choose a "
            f"--heldout-size from 0 to {len(prompts)}."
        )
    keys = [problem_key(prompt.text) for prompt in prompts]
    chosen = set(sorted(range(len(prompts)), key=lambda i: (keys[i], i))[:size])
    return [prompt for i, prompt in enumerate(prompts) if i in chosen]


def without(prompts: Sequence[Prompt], heldout: Sequence[Prompt], source: str) -> list[Prompt]:
    """Training prompts less those that are held out; says how many those were.

    Raises:
        DataError: Nothing is left.
    """
    keys = {problem_key(prompt.text) for prompt in heldout}
    kept = [prompt for prompt in prompts if problem_key(prompt.text) not in keys]
    if len(kept) < len(prompts):
        logger.warning(
            "%s: %d of %d training prompts are also held out; they are left out of training.",
            source,
            len(prompts) - len(kept),
            len(prompts),
        )
    if not kept:
        raise DataError(
            f"{source}: every training prompt is also held out. Give --heldout other problems."
        )
    return kept
