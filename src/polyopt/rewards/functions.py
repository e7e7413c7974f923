"""Reward functions that users write.

A function says by its parameter names what it wants, and by number whether it is called once per
completion or once per batch:

    def reward(completion, answer): ...               # called for each completion -> one reward
    def reward(completions, answers): ...             # called once -> a list of rewards

Beside `completion(s)`, which is required, it may take `prompt(s)` (`Prompt` objects), `answer(s)`
and `metadata` (one mapping, or a list of them). Singular and plural don't mix. Other parameters
need defaults. None means "I can't score this one". `reward.correctness = True` says that 1 means
"right", so that the reward is also the run's accuracy.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyopt.batch import Prompt
from polyopt.errors import DataError, UserError
from polyopt.python_files import failing_line

EACH = frozenset({"completion", "prompt", "answer", "metadata"})
"""Parameters of a function that is called for each completion."""
WHOLE = frozenset({"completions", "prompts", "answers", "metadata"})
"""Parameters of a function that is called once for a batch."""

_NO_DEFAULT = inspect.Parameter.empty

_KINDS = "write `def NAME(completion, answer)` or `def NAME(completions, answers)`, each with or \
without prompt(s), answer(s) and metadata"


class RowFailed(Exception):
    """A function that is called per completion raised; says for which row."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


@dataclass(frozen=True)
class UserReward:
    """A user's function as a `RewardFunction`.

    Attributes:
        function: The function as it was written.
        wants: Names of the arguments it is given.
        source: File it comes from.
    """

    function: Callable[..., Any]
    wants: frozenset[str]
    source: Path

    @property
    def needs_answer(self) -> bool:
        """Whether it reads the prompts' answers."""
        return bool(self.wants & {"answer", "answers"})

    def __call__(self, prompts: Sequence[Prompt], completions: Sequence[str]) -> Any:
        """What the function returns, or a list of what it returns for each completion.

        Raises:
            RowFailed: The function raised on one completion (the cause is chained).
        """
        if "completions" in self.wants:
            columns = {
                "completions": list(completions),
                "prompts": list(prompts),
                "answers": [prompt.answer for prompt in prompts],
                "metadata": [prompt.metadata for prompt in prompts],
            }
            return self.function(**{name: columns[name] for name in self.wants})
        pairs = zip(prompts, completions, strict=True)
        return [self._one(row, *pair) for row, pair in enumerate(pairs)]

    def _one(self, row: int, prompt: Prompt, completion: str) -> Any:
        columns = {
            "completion": completion,
            "prompt": prompt,
            "answer": prompt.answer,
            "metadata": prompt.metadata,
        }
        try:
            return self.function(**{name: columns[name] for name in self.wants})
        except UserError:
            raise
        except Exception as error:
            raise RowFailed(row) from error

    def failure(self, error: BaseException) -> str:
        """The line of the user's file that raised, with the error."""
        return failing_line(error, self.source)


def user_reward(function: Any, source: Path, name: str) -> UserReward:
    """Check a user's function against the rule of this module and wrap it.

    Raises:
        DataError: Not a function, or parameters that the rule doesn't allow.
    """
    where = f"reward {source}:{name}"
    if isinstance(function, type) or not callable(function):
        raise DataError(f"{where} is of type {_kind(function)}, not a function: {_KINDS}.")
    if inspect.iscoroutinefunction(function):
        raise DataError(f"{where} is async, which a reward can't be: make it a plain `def`.")
    wants = _wanted(inspect.signature(function), where)
    return UserReward(function, wants, source)


def _wanted(signature: inspect.Signature, where: str) -> frozenset[str]:
    """Names of the arguments to pass."""
    shown = f"{where} has parameters {signature}"
    known: set[str] = set()
    everything = False
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            everything = True
        elif name in EACH | WHOLE and parameter.kind is not parameter.POSITIONAL_ONLY:
            known.add(name)
        elif parameter.kind is not parameter.VAR_POSITIONAL and parameter.default is _NO_DEFAULT:
            raise DataError(
                f"{shown}, and {name!r} is none of the names that are passed: {_KINDS}; give other "
                "parameters a default."
            )
    if not known & {"completion", "completions"}:
        raise DataError(f"{shown}, none of which is the completion: {_KINDS}.")
    style = WHOLE if "completions" in known else EACH
    mixed = sorted(known - style)
    if mixed:
        raise DataError(
            f"{shown}: {mixed[0]!r} is {'one value' if style is WHOLE else 'a list'}, "
            f"but the function takes {'completions' if style is WHOLE else 'completion'!r}: use "
            "singular names throughout (called per completion) or plural ones (called per batch)."
        )
    return style if everything else frozenset(known)


def _kind(value: object) -> str:
    return "class" if isinstance(value, type) else type(value).__name__
