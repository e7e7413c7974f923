"""Rewards as they are written on the command line.

    [WEIGHT*]NAME[:ARGUMENT]            exact    0.2*format    regex:^\\d+$    json:name,age
    [WEIGHT*]path/to/file.py:function   0.5*rewards.py:brevity

Built-in names are in `BUILTIN`; a task's own verifier goes by its own name (`accuracy`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from polyopt.errors import DataError, did_you_mean
from polyopt.python_files import load_object, split_python_spec
from polyopt.rewards.functions import user_reward
from polyopt.rewards.mathematics import math_match, require_math_verify
from polyopt.rewards.protocol import RewardFunction, RewardTerm
from polyopt.rewards.verifiers import (
    AgainstAnswer,
    IsJsonObject,
    MatchesPattern,
    OfText,
    choice_match,
    exact_match,
    number_match,
    think_then_answer,
)


@dataclass(frozen=True)
class Builtin:
    """A reward that has a name.

    Attributes:
        make: The reward function, given the text after the colon (None without a colon).
        summary: What it is 1 for, in a few words.
        argument: What the text after the colon means; None if there mustn't be one.
        required: Whether there must be one.
        correctness: Whether 1 means "right".
    """

    make: Callable[[str | None], RewardFunction]
    summary: str
    argument: str | None = None
    required: bool = False
    correctness: bool = False


def _math(_: str | None) -> RewardFunction:
    require_math_verify()
    return AgainstAnswer(math_match)


def _json(keys: str | None) -> RewardFunction:
    return OfText(IsJsonObject(tuple(k.strip() for k in (keys or "").split(",") if k.strip())))


BUILTIN: dict[str, Builtin] = {
    "exact": Builtin(
        lambda _: AgainstAnswer(exact_match),
        "the stated answer is the reference, letter for letter after normalising",
        correctness=True,
    ),
    "math": Builtin(
        _math, "the stated expression equals the reference as mathematics", correctness=True
    ),
    "number": Builtin(
        lambda _: AgainstAnswer(number_match),
        "the last number stated equals the reference number",
        correctness=True,
    ),
    "choice": Builtin(
        lambda _: AgainstAnswer(choice_match),
        "the letter chosen (A to J) is the reference letter",
        correctness=True,
    ),
    "regex": Builtin(
        lambda pattern: OfText(MatchesPattern(pattern or "")),
        "the pattern is found in the completion",
        argument="PATTERN",
        required=True,
    ),
    "json": Builtin(_json, "the answer is a JSON object with those keys", argument="KEY,KEY,..."),
    "format": Builtin(
        lambda _: OfText(think_then_answer), "<think>...</think> <answer>...</answer> and no more"
    ),
}
"""The rewards that have a name."""

_WEIGHTED = re.compile(r"\s*([^*:/\\]+?)\s*\*\s*(.+)", re.DOTALL)


def parse_reward(spec: str, own: Sequence[RewardTerm] = ()) -> RewardTerm:
    """The reward term that a spec describes.

    Args:
        spec: See the module's docstring.
        own: The task's own terms, which a spec may name.

    Raises:
        DataError: Unknown name, bad weight or argument, or a function that can't be used.
        UserError: A package that the reward needs isn't installed.
    """
    weighted = _WEIGHTED.fullmatch(spec)
    weight = 1.0 if weighted is None else _weight(weighted[1], spec)
    body = (spec if weighted is None else weighted[2]).strip()
    in_file = None if body.startswith("regex:") else split_python_spec(body)
    if in_file is not None:
        return _from_file(in_file[0], in_file[1], weight)
    name, colon, argument = body.partition(":")
    known = {term.name: term for term in own}
    if body in known:
        return replace(known[body], weight=weight)
    if name not in BUILTIN:
        raise DataError(
            f"no reward is called {name!r}: {did_you_mean(name, [*known, *BUILTIN])} A function of "
            "your own is given as path/to/file.py:function."
        )
    builtin = BUILTIN[name]
    _check_argument(name, builtin, argument if colon else None)
    function = builtin.make(argument if colon else None)
    return RewardTerm(body, function, weight, builtin.correctness)


def parse_rewards(
    specs: Sequence[str | RewardTerm], own: Sequence[RewardTerm] = ()
) -> tuple[RewardTerm, ...]:
    """Several reward terms with different names.

    If none of them says what is right but one of the task's own terms does, that one joins with
    weight 0, so that accuracy is still logged.

    Raises:
        DataError: As `parse_reward`; a name given twice; nothing has a weight.
    """
    terms = [one if isinstance(one, RewardTerm) else parse_reward(one, own) for one in specs]
    names = [term.name for term in terms]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(
            f"the reward {twice!r} is given {names.count(twice)} times: give it once, with a "
            f"weight such as 2*{twice}, or rename one of the two functions."
        )
    if terms and all(term.weight == 0 for term in terms):
        raise DataError(
            f"every reward has weight 0 ({', '.join(names)}), so there is nothing to learn from: "
            "give at least one another weight."
        )
    if not any(term.correctness for term in terms):
        right = next((term for term in own if term.correctness and term.name not in names), None)
        terms += [replace(right, weight=0.0)] if right else []
    return tuple(terms)


def needs_answer(term: RewardTerm) -> bool:
    """Whether a term can only score prompts that have an answer."""
    return bool(getattr(term.function, "needs_answer", False))


def _weight(text: str, spec: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not math.isfinite(weight):
        raise DataError(
            f"reward {spec!r}: {text!r} is not a weight. Write a finite number before the star, as "
            "in 0.2*format."
        )
    return weight


def _from_file(path: str, name: str, weight: float) -> RewardTerm:
    found = load_object(path, name)
    if isinstance(found, RewardTerm):
        return replace(found, weight=weight * found.weight)
    function = user_reward(found, Path(path), name)
    return RewardTerm(name, function, weight, bool(getattr(found, "correctness", False)))


def _check_argument(name: str, builtin: Builtin, argument: str | None) -> None:
    if builtin.argument is None and argument is not None:
        raise DataError(
            f"reward '{name}:{argument}': {name!r} takes nothing after it; write {name}."
        )
    if builtin.required and not argument:
        raise DataError(
            f"reward {name!r} needs {builtin.argument} after a colon: {name}:{builtin.argument}."
        )
