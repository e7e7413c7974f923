"""Rewards for questions of which several options are right."""

from __future__ import annotations

import re
from collections.abc import Set
from typing import Any

from polyopt.rewards.answers import marked_answer, visible

_OPTION = re.compile(r"(?<![\w'])([A-J])(?![\w'])")


def options(text: str) -> frozenset[str]:
    """The letters A to J that stand alone in a text."""
    return frozenset(_OPTION.findall(text))


def option_overlap(chosen: Set[str], right: Set[str]) -> float:
    """|chosen| / |right| if only right options are chosen, else 0: partly right earns its part.

    TW-GRPO, arXiv 2505.24718 (soft multi-choice reward).
    """
    return len(chosen) / len(right) if chosen and chosen <= right else 0.0


def soft_choice_match(text: str, answer: Any) -> float | None:
    """`option_overlap` of a completion's marked answer (or last line) with the reference.

    The reference is a list of letters or a text such as "A, C"; None if it names no option.
    """
    listed = " ".join(map(str, answer)) if isinstance(answer, list | tuple) else str(answer)
    right = options(marked_answer(listed) or listed)
    if not right:
        return None
    shown = visible(text)
    lines = [line for line in shown.strip().splitlines() if line.strip()]
    stated = marked_answer(shown) or (lines[-1] if lines else "")
    return option_overlap(options(stated), right)
