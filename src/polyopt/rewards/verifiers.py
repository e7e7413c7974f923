"""Built-in rewards that need no model: 1 for right (or well-formed), 0 for not.

Each check is a pure function of one completion; `AgainstAnswer` and `OfText` make it a
`RewardFunction`. All of them look only at the text after `</think>` (see `answers.visible`), except
`regex` and `format`, which see the completion as it was sampled.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn

from polyopt.batch import Prompt
from polyopt.errors import DataError
from polyopt.rewards.answers import last_line, marked_answer, visible


@dataclass(frozen=True)
class AgainstAnswer:
    """A reward that compares each completion with the answer of its prompt.

    Attributes:
        check: (completion, answer) -> reward, or None where this answer can't be checked against.
    """

    check: Callable[[str, Any], float | None]
    needs_answer: bool = True

    def __call__(self, prompts: Sequence[Prompt], completions: Sequence[str]) -> list[float | None]:
        """One reward a completion; None where the prompt has no answer."""
        return [
            None if prompt.answer is None else self.check(text, prompt.answer)
            for prompt, text in zip(prompts, completions, strict=True)
        ]


@dataclass(frozen=True)
class OfText:
    """A reward that looks at the completion alone.

    Attributes:
        check: completion -> reward.
    """

    check: Callable[[str], float]
    needs_answer: bool = False

    def __call__(self, prompts: Sequence[Prompt], completions: Sequence[str]) -> list[float]:
        """One reward a completion."""
        return [self.check(text) for text in completions]


def exact_match(text: str, answer: Any) -> float:
    r"""1 if the stated answer is the reference answer, letter for letter after normalising.

    The stated answer is the marked one (last `<answer>` tag, else last `\boxed{}`, else last
    `#### answer`); without a mark, the whole text or its last line. The reference may carry marks
    too, and may be a list of answers of which one has to match. Normalising drops case, repeated
    white space, enclosing quotes, `$` and `*`, a closing full stop and a leading "the answer is".
    `7` and `7.0` differ: compare numbers with `number` or `math`.
    """
    shown = visible(text)
    marked = marked_answer(shown)
    stated = {shown, last_line(shown)} if marked is None else {marked}
    references = answer if isinstance(answer, list | tuple) else [answer]
    wanted = {normalised(marked_answer(str(one)) or str(one)) for one in references}
    return float(any(normalised(one) in wanted for one in stated if one))


_LEAD = re.compile(r"^(?:the )?(?:final )?answer(?: is\b|\s*:)\s*:?\s*(?=\S)", re.IGNORECASE)


def normalised(answer: str) -> str:
    """An answer without what doesn't change its meaning: see `exact_match`."""
    bare = " ".join(answer.split()).strip("*`")
    bare = _LEAD.sub("", bare).strip("*`\"'$ ")
    return bare.removesuffix(".").rstrip("*`\"'$ ").casefold()


_NUMBER = re.compile(
    r"(?:(?<![\w)\].])[-+\u2212])?(?<![A-Za-z_])"
    r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(?:(?<=\d)\.\d+|(?<!\d)\.\d+)?(?<=\d)"
    r"(?:[eE][-+]?\d{1,3}(?!\w))?"
)


def last_number(text: str) -> Decimal | None:
    """The last number in a text: sign, thousands commas, decimals and exponent understood."""
    found = [match for match in _NUMBER.findall(text) if match]
    if not found:
        return None
    return Decimal(found[-1].replace(",", "").replace("\u2212", "-"))


def number_match(text: str, answer: Any) -> float | None:
    """1 if the last number stated equals the reference number; None if that isn't a number.

    Looks in the marked answer if there is one, else in the whole text. Values are compared, not
    spellings (`1,000.0` is `1000`), exactly: give fractions and roots to `math`.
    """
    wanted = _reference_number(answer)
    if wanted is None:
        return None
    shown = visible(text)
    marked = marked_answer(shown)
    stated = last_number(shown if marked is None else marked)
    return float(stated is not None and stated == wanted)


def _reference_number(answer: Any) -> Decimal | None:
    if isinstance(answer, str):
        return last_number(marked_answer(answer) or answer)
    try:
        return Decimal(str(answer))
    except InvalidOperation:
        return None


_CHOICE_ALONE = re.compile(r"^\W*([A-Ja-j])\W*$")
_CHOICE_LEADS = re.compile(r"^\W*([A-J])[).:]")
_CHOICE_NAMED = re.compile(
    r"(?:answer|choice|option)(?:\s+is|\s*:)?\s*:?\s*[*$(\"']*([A-J])(?![\w'])", re.IGNORECASE
)
_CHOICE_BRACKETED = re.compile(r"\(([A-J])\)")


def choice_letter(text: str) -> str | None:
    """The letter A to J that a text chooses; None if it chooses none.

    In this order: the text is nothing but a letter, or begins `B)`, `B.` or `B:`; the last
    "answer is B" (or choice, option); the last `(B)`; a last line that is nothing but a letter or
    begins with one as above.
    """
    lines = (text.strip(), last_line(text))
    for line in lines[:1]:
        if "\n" not in line and (found := _CHOICE_ALONE.match(line) or _CHOICE_LEADS.match(line)):
            return found[1].upper()
    for pattern in (_CHOICE_NAMED, _CHOICE_BRACKETED):
        letters = pattern.findall(text)
        if letters:
            return str(letters[-1]).upper()
    found = _CHOICE_ALONE.match(lines[1]) or _CHOICE_LEADS.match(lines[1])
    return found[1].upper() if found else None


def choice_match(text: str, answer: Any) -> float | None:
    """1 if the completion chooses the reference letter; None if the reference is no letter.

    The reference may be written `B`, `(B)` or `B. Paris`. A number isn't a letter: whether the
    first option is 0 or 1 can't be known.
    """
    reference = str(answer)
    wanted = choice_letter(marked_answer(reference) or reference)
    if wanted is None:
        return None
    shown = visible(text)
    marked = marked_answer(shown)
    return float(choice_letter(shown if marked is None else marked) == wanted)


@dataclass(frozen=True)
class MatchesPattern:
    """1 if the pattern is found anywhere in the completion (`re.search`).

    Raises:
        DataError: The pattern isn't a regular expression.
    """

    pattern: str

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise DataError(
                f"reward 'regex:{self.pattern}': not a regular expression: {error}. Write literal "
                "brackets, dots and stars with a backslash before them."
            ) from None

    def __call__(self, text: str) -> float:
        """1 or 0 for one completion."""
        return float(re.search(self.pattern, text) is not None)


@dataclass(frozen=True)
class IsJsonObject:
    """1 if the completion is a JSON object that has the required keys.

    The object is what stands in the last `<answer>` tag, else the text after `</think>`; a
    Markdown code fence around it is allowed, prose before or after it isn't.
    """

    keys: tuple[str, ...] = ()

    def __call__(self, text: str) -> float:
        """1 or 0 for one completion."""
        shown = visible(text)
        answer = shown if "<answer>" not in shown else marked_answer(shown) or ""
        fenced = re.fullmatch(r"```(?:json)?\s*\n(.*)\n\s*```", answer.strip(), re.DOTALL)
        try:
            value = json.loads(fenced[1] if fenced else answer, parse_constant=_not_json)
        except (ValueError, RecursionError):
            return 0.0
        return float(isinstance(value, dict) and all(key in value for key in self.keys))


def _not_json(constant: str) -> NoReturn:
    """Python reads NaN and Infinity; JSON doesn't have them."""
    raise ValueError(constant)


_THINK_THEN_ANSWER = re.compile(
    r"\s*(?:<think>)?(?P<thought>.*)</think>\s*<answer>(?P<answer>.*)</answer>\s*", re.DOTALL
)


def think_then_answer(text: str) -> float:
    """1 if the completion is `<think>...</think> <answer>...</answer>` and nothing else.

    Each tag once, both parts non-empty. The opening `<think>` may be missing, since some chat
    templates end the prompt with it.
    """
    found = _THINK_THEN_ANSWER.fullmatch(text)
    if found is None or not (found["thought"].strip() and found["answer"].strip()):
        return 0.0
    once = (text.count(tag) == 1 for tag in ("</think>", "<answer>", "</answer>"))
    return float(all(once) and text.count("<think>") <= 1)
