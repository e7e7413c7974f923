"""Scores: every term's reward for every completion, and their weighted sum."""

from __future__ import annotations

import logging
import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from polyopt.batch import Prompt
from polyopt.errors import DataError, UserError
from polyopt.rewards.functions import RowFailed, UserReward
from polyopt.rewards.protocol import RewardTerm

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Scores:
    """What N completions are worth.

    Attributes:
        total: Weighted sum of the terms that scored each row; NaN where no term with a weight did.
        terms: Each term's own rewards, unweighted, by name; NaN where it couldn't score.
    """

    total: Float[Tensor, " N"]
    terms: Mapping[str, Float[Tensor, " N"]]

    @property
    def unscored(self) -> int:
        """Rows that nobody could score."""
        return int(torch.isnan(self.total).sum())


def score(
    terms: Sequence[RewardTerm],
    prompts: Sequence[Prompt],
    texts: Sequence[str],
    *,
    first: bool = False,
) -> Scores:
    r"""Rewards of N completions: `total_i = \sum_k w_k r_{ki}` over the terms that scored row i.

    A term's function returns one number a row: bool, int, float, NumPy scalar or 0-d tensor on any
    device; None says "I can't score this one". Terms of weight 0 are only reported: a row that
    they alone scored is unscored. If every row of a batch is unscored, a warning says so.

    Args:
        terms: Reward terms with different names.
        prompts: The prompt of each of the `texts`.
        texts: The completions.
        first: This is the run's first scoring. A term that then returns None for every row is
            taken for a mistake (a forgotten `return`), unless other terms scored all those rows:
            then it may be for other prompts, and a warning names it.

    Raises:
        DataError: A function that raised, returned anything else (NaN and infinity included) or
            the wrong number of rewards; it names the function, the prompt and the value.
    """
    if len(prompts) != len(texts):
        raise ValueError(f"{len(prompts)} prompts for {len(texts)} completions")
    if len({term.name for term in terms}) != len(terms):
        raise ValueError(f"reward terms share a name: {', '.join(t.name for t in terms)}")
    columns = {term.name: _term_rewards(term, prompts, texts) for term in terms}
    scores = Scores(_total(terms, columns, len(texts)), columns)
    if first and len(texts):
        _check_first(terms, scores, prompts)
    if len(texts) and scores.unscored == len(texts):
        names = ", ".join(term.name for term in terms) or "there is none"
        said = f"no reward could score any of {len(texts)} completions ({names})"
        logger.warning("%s: they teach nothing.", said)
    return scores


def _total(terms: Sequence[RewardTerm], columns: Mapping[str, Tensor], rows: int) -> Tensor:
    total = torch.zeros(rows, dtype=torch.float64)
    scored = torch.zeros(rows, dtype=torch.bool)
    for term in terms:
        if term.weight == 0:
            continue
        rewards = columns[term.name]
        total = total + term.weight * rewards.nan_to_num(0.0)
        scored |= ~torch.isnan(rewards)
    return total.where(scored, torch.nan)


def _term_rewards(term: RewardTerm, prompts: Sequence[Prompt], texts: Sequence[str]) -> Tensor:
    """One term's validated rewards, NaN for None."""
    try:
        returned = term.function(prompts, texts)
    except UserError:
        raise
    except Exception as error:
        raise _raised(term, error, prompts, texts) from error
    rewards = _entries(term, returned, prompts)
    values = [_number(term, *row) for row in zip(rewards, prompts, texts, strict=True)]
    return torch.tensor(values, dtype=torch.float64)


def _entries(term: RewardTerm, returned: Any, prompts: Sequence[Prompt]) -> list[Any]:
    """What a function returned, as a list of the right length."""
    rows = len(prompts)
    wanted = f"It must return a list of {rows} rewards, one for each completion."
    about = f" (the first for {_describe(prompts[0])})" if rows else ""
    if isinstance(returned, Tensor):
        returned = returned.detach().cpu()
    lone = isinstance(returned, str | bytes | Mapping) or getattr(returned, "ndim", 1) == 0
    if lone or not isinstance(returned, Iterable):
        raise DataError(
            f"reward {term.name!r} returned {_show(returned)} for {rows} completions{about}. "
            f"{wanted}"
        )
    entries = list(returned)
    if len(entries) != rows:
        raise DataError(
            f"reward {term.name!r} returned {len(entries)} rewards for {rows} completions{about}: "
            f"{_show(entries)}. {wanted} Use None where it can't score one."
        )
    return entries


def _number(term: RewardTerm, value: Any, prompt: Prompt, text: str) -> float:
    """One reward as a float; NaN for None."""
    if value is None:
        return math.nan
    number = math.nan
    scalar = isinstance(value, Tensor | np.ndarray) and value.ndim == 0
    if scalar or isinstance(value, numbers.Real | np.bool_ | np.number):
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
    if not math.isfinite(number):
        raise DataError(
            f"reward {term.name!r} returned {_show(value)} for {_describe(prompt)}, completion "
            f"{_start(text)}. A reward is a finite number, or None where the function can't score "
            "the completion."
        )
    return number


def _raised(
    term: RewardTerm, error: Exception, prompts: Sequence[Prompt], texts: Sequence[str]
) -> DataError:
    cause = error.__cause__ if isinstance(error, RowFailed) and error.__cause__ else error
    if isinstance(term.function, UserReward):
        what = term.function.failure(cause)
    else:
        what = f"{type(cause).__name__}: {cause}"
    if isinstance(error, RowFailed):
        where = f"on {_describe(prompts[error.row])}, completion {_start(texts[error.row])}"
    else:
        about = f", the first for {_describe(prompts[0])}" if prompts else ""
        where = f"on a batch of {len(texts)} completions{about}"
    return DataError(
        f"reward {term.name!r} raised {where}: {what}. Make the function cope with any text a "
        "model may write; it may return None where it can't score a completion."
    )


def _check_first(terms: Sequence[RewardTerm], scores: Scores, prompts: Sequence[Prompt]) -> None:
    for term in terms:
        if not bool(torch.isnan(scores.terms[term.name]).all()):
            continue
        said = (
            f"reward {term.name!r} returned None for every one of the run's first {len(prompts)} "
            f"completions (the first for {_describe(prompts[0])})"
        )
        if term.weight == 0 or scores.unscored == 0:
            logger.warning("%s; other rewards scored them.", said)
            continue
        raise DataError(
            f"{said}. Does it return its result, and do the prompts have answers of the kind it "
            "checks? None is for the odd completion that can't be scored."
        )


def _describe(prompt: Prompt) -> str:
    return f"prompt {prompt.id!r} ({_start(prompt.text)})"


def _start(text: str, limit: int = 60) -> str:
    return repr(text if len(text) <= limit else text[:limit] + "...")


def _show(value: object, limit: int = 80) -> str:
    shown = repr(value)
    kind = "" if value is None or isinstance(value, str) else f" ({type(value).__name__})"
    return (shown if len(shown) <= limit else shown[:limit] + "...") + kind
