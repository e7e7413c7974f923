"""The `math` reward: is the stated expression equal to the reference, as mathematics?"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from polyopt.errors import UserError
from polyopt.rewards.answers import marked_answer, visible
from polyopt.rewards.judge import GaveUp, shared_judge

_FILE = Path(__file__).with_name("math_judge.py")


def math_match(text: str, answer: Any) -> float | None:
    r"""1 if the completion's expression equals the reference; None if that can't be read.

    Numbers, fractions, LaTeX, sets, intervals and equations, compared by the math-verify package.
    The expression is the marked answer (last `<answer>` tag, `\boxed{}`, `#### answer`); without a
    mark, what math-verify finds in the text. It runs in a process of its own: never raises on what
    a model writes, works from any thread, and an expression that can't be decided within five
    seconds counts as wrong.
    """
    reference = str(answer)
    shown = visible(text)
    marked = marked_answer(shown)
    stated = shown
    if marked is not None:
        stated = marked if "$" in marked else f"\\boxed{{{marked}}}"
    try:
        judgement = shared_judge(_FILE, "make")(marked_answer(reference) or reference, stated)
    except GaveUp:
        return 0.0
    return None if judgement is None else float(judgement)


def require_math_verify() -> None:
    """Fail now rather than at the first reward.

    Raises:
        UserError: math-verify isn't installed.
    """
    if importlib.util.find_spec("math_verify") is None:
        raise UserError(
            "the reward 'math' needs the package math-verify, which isn't installed: "
            "pip install 'polyopt[tasks]'."
        )
