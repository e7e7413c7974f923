"""Held-out evaluation: pass@k, avg@k, maj@k and lengths, with intervals."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyopt.batch import Prompt
from polyopt.distribution import Distribution
from polyopt.engines.protocol import Engine, Sample, SampleRequest
from polyopt.errors import DataError
from polyopt.models.policy import Policy
from polyopt.rewards.answers import last_line, marked_answer, visible
from polyopt.rewards.scoring import score
from polyopt.seeding import derive_seed, generator
from polyopt.tasks.task import Task

Z95 = 1.959964
"""Two-sided 95% quantile of the normal distribution."""


@dataclass(frozen=True)
class EvalSettings:
    """How to evaluate.

    Attributes:
        samples: Completions per prompt (k goes up to this number).
        distribution: What is sampled from; temperature 0 is greedy decoding.
        max_tokens: Most completion tokens.
        seed: Seed of the samples. The same seed gives the same noise before and after training.
        limit: Most prompts; None takes all held-out ones.
    """

    samples: int = 1
    distribution: Distribution = dataclasses.field(default_factory=Distribution)
    max_tokens: int = 256
    seed: int = 0
    limit: int | None = None


@dataclass(frozen=True)
class EvalResult:
    """What an evaluation found.

    Attributes:
        metrics: `pass@k` (unbiased estimator), `avg@k`, `maj@k`, `length/mean`, `truncated`,
            `unscored`, each rate with a 95% interval as `NAME/low` and `NAME/high`.
        rows: One row per completion, for the report.
    """

    metrics: dict[str, float]
    rows: list[dict[str, Any]]


def evaluate(policy: Policy, engine: Engine, task: Task, settings: EvalSettings) -> EvalResult:
    """Sample the held-out prompts and judge the completions.

    A completion is right when the task's correctness term gives 1. Prompts with a completion that
    nobody could score are left out of the rates and counted as `unscored`.

    Raises:
        DataError: The task has no held-out prompts, or no reward term that says "right".
    """
    prompts = list(task.heldout)[: settings.limit]
    term = task.accuracy_term
    if not prompts:
        raise DataError(f"{task.name!r} has no held-out prompts: raise --heldout-size above 0.")
    if term is None:
        raise DataError(
            f"{task.name!r} has no reward that says right or wrong: add --reward exact (or math, "
            "number, ...) to evaluate it."
        )
    owners = [prompt for prompt in prompts for _ in range(settings.samples)]
    samples = engine.sample(_requests(policy, task, prompts, settings))
    texts = [policy.decode(sample.tokens) for sample in samples]
    scores = score(task.rewards, owners, texts)
    verdicts = scores.terms[term.name].numpy().reshape(len(prompts), settings.samples)
    answers = np.array([_answer(text) for text in texts], dtype=object)
    metrics = rates(verdicts, answers.reshape(verdicts.shape), settings.seed)
    lengths = [len(sample.tokens) for sample in samples]
    metrics |= {
        "prompts": float(len(prompts)),
        "samples": float(settings.samples),
        "length/mean": float(np.mean(lengths)),
        "length/max": float(np.max(lengths)),
        "truncated": float(np.mean([sample.finish == "length" for sample in samples])),
    }
    terms = {name: values.tolist() for name, values in scores.terms.items()}
    pieces = [policy.token_texts(sample.tokens) for sample in samples]
    totals = scores.total.tolist()
    return EvalResult(metrics, _rows(owners, samples, texts, terms, term.name, totals, pieces))


def pass_at_k(verdicts: np.ndarray[Any, Any], k: int) -> np.ndarray[Any, Any]:
    """Unbiased pass@k of each prompt: 1 - C(n - c, k) / C(n, k) for c right of n.

    Chen et al., arXiv 2107.03374, eq. 1.
    """
    n = verdicts.shape[1]
    right = (verdicts >= 1).sum(1)
    return np.array([1 - math.comb(n - c, k) / math.comb(n, k) for c in right.tolist()])


def majority_right(
    verdicts: np.ndarray[Any, Any], answers: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Whether each prompt's most frequent answer is right; ties share their rate."""
    rates = []
    for verdict, answer in zip(verdicts, answers, strict=True):
        counts = Counter(answer.tolist())
        most = max(counts.values())
        winners = [text for text, count in counts.items() if count == most]
        rates.append(np.mean([(verdict[answer == text] >= 1).mean() for text in winners]))
    return np.array(rates)


def rates(
    verdicts: np.ndarray[Any, Any], answers: np.ndarray[Any, Any], seed: int
) -> dict[str, float]:
    """All rates with their intervals, over prompts [P] with n completions each [P, n]."""
    known = ~np.isnan(verdicts).any(1)
    metrics = {"unscored": float(1 - known.mean())}
    verdicts, answers = verdicts[known], answers[known]
    if not len(verdicts):
        return metrics
    n = verdicts.shape[1]
    powers = [2**i for i in range(n.bit_length()) if 2**i <= n]
    values = {f"pass@{k}": pass_at_k(verdicts, k) for k in sorted({*powers, n})}
    if n > 1:
        values[f"avg@{n}"] = verdicts.mean(1)
        values[f"maj@{n}"] = majority_right(verdicts, answers)
    for name, per_prompt in values.items():
        low, high = interval(per_prompt, derive_seed(seed, "interval", name))
        mean = float(per_prompt.mean())
        metrics |= {name: mean, f"{name}/low": low, f"{name}/high": high}
    return metrics


def interval(per_prompt: np.ndarray[Any, Any], seed: int) -> tuple[float, float]:
    """95% interval of a mean over prompts: Wilson's for yes/no values, else a bootstrap."""
    n, mean = len(per_prompt), float(per_prompt.mean())
    if set(np.unique(per_prompt)) <= {0.0, 1.0}:
        centre = (mean + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
        spread = mean * (1 - mean) / n + Z95**2 / (4 * n**2)
        half = Z95 / (1 + Z95**2 / n) * math.sqrt(spread)
        return max(centre - half, 0.0), min(centre + half, 1.0)
    picks = generator(seed).integers(0, n, size=(2000, n))
    low, high = np.quantile(per_prompt[picks].mean(1), [0.025, 0.975])
    return float(low), float(high)


def _requests(
    policy: Policy, task: Task, prompts: Sequence[Prompt], settings: EvalSettings
) -> list[SampleRequest]:
    return [
        SampleRequest(
            prompt=policy.encode(prompt, "", task.system),
            seed=derive_seed(settings.seed, "evaluate", prompt.id, i),
            max_tokens=settings.max_tokens,
            distribution=settings.distribution,
            stop_ids=policy.stop_ids,
        )
        for prompt in prompts
        for i in range(settings.samples)
    ]


def _rows(
    prompts: Sequence[Prompt],
    samples: Sequence[Sample],
    texts: Sequence[str],
    terms: Mapping[str, Sequence[float]],
    correctness: str,
    totals: Sequence[float],
    pieces: Sequence[Sequence[str]],
) -> list[dict[str, Any]]:
    """What the report shows of each completion."""
    return [
        {
            "prompt_id": prompt.id,
            "prompt": prompt.text,
            "completion": text,
            "answer": str(prompt.answer),
            "reward": totals[i],
            "terms": {name: values[i] for name, values in terms.items()},
            "accuracy": terms[correctness][i],
            "finish": sample.finish,
            "tokens": list(pieces[i]),
            "mask": [1] * len(sample.tokens),
            "logp": list(sample.logp),
        }
        for i, (prompt, sample, text) in enumerate(zip(prompts, samples, texts, strict=True))
    ]


def _answer(text: str) -> str:
    """What a completion answers, for majority votes: its marked answer, or its last line."""
    shown = visible(text)
    return marked_answer(shown) or last_line(shown)
