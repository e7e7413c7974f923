"""Problems that a task trains on and holds out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polyopt.batch import Prompt

SHOWN = 20


def plain(text: str) -> str:
    """A prompt's text without differences of case and white space."""
    return " ".join(text.lower().split())


def prompt_counts(train: Sequence[Prompt], heldout: Sequence[Prompt]) -> dict[str, Any]:
    """How many prompts are trained on, held out, and both: for `run.json`.

    Two prompts are the same if their texts differ in case and white space only. `examples` holds
    the first texts that are in both.
    """
    trained = {plain(prompt.text) for prompt in train}
    both = [prompt.text for prompt in heldout if plain(prompt.text) in trained]
    return {
        "train": len(train),
        "heldout": len(heldout),
        "both": len(both),
        "examples": both[:SHOWN],
    }
