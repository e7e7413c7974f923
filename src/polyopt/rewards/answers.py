"""Where a completion states its answer."""

from __future__ import annotations

import re

_HASHES = re.compile(r"####[ \t]*(.+)")


def visible(text: str) -> str:
    """The text after the model's thoughts: what follows the last `</think>`.

    A thought that was opened and never closed leaves nothing: a number met on the way is not an
    answer.
    """
    shown = text.rpartition("</think>")[2]
    return "" if "<think>" in shown else shown.strip()


def tagged(text: str) -> str | None:
    """What stands in the last `<answer>...</answer>`; None without one."""
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, end) if end >= 0 else -1
    return None if start < 0 else text[start + len("<answer>") : end].strip()


def boxed(text: str) -> str | None:
    r"""What stands in the last `\boxed{...}`, braces matched; None without one."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    first = start + len("\\boxed{")
    depth = 1
    for i in range(first, len(text)):
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if depth == 0:
            return text[first:i].strip()
    return None


def marked_answer(text: str) -> str | None:
    r"""The answer that the text marks as such; None if it marks none.

    Looked for in this order: the last `<answer>` tag (and a `\boxed{}` inside it), the last
    `\boxed{}`, the last line `#### answer`.
    """
    answer = tagged(text)
    if answer is not None:
        return boxed(answer) or answer
    answer = boxed(text)
    if answer is not None:
        return answer
    hashes = _HASHES.findall(text)
    return hashes[-1].strip() if hashes else None


def last_line(text: str) -> str:
    """The last line that isn't blank."""
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""
