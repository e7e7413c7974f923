"""Short real runs of the tiny model: healthy ones, and ones that are made sick in known ways."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polyopt
from polyopt.batch import Prompt
from polyopt.engines.local import LocalEngine
from polyopt.engines.protocol import Sample, SampleRequest
from polyopt.models.policy import Policy
from polyopt.rewards.protocol import RewardTerm
from polyopt.run_folder import read_rows
from polyopt.tasks.task import Task
from tests.diagnosis.scoring import Case
from tests.lagging_engine import LaggingEngine
from tests.tiny import starts_with_a_letter, tiny_policy

Verdict = Callable[[Sequence[Prompt], Sequence[str]], Sequence[float | None]]

NUMBERS = {
    "updates.optimizer.lr": 0.01,
    "rollouts.max_tokens": 56,
    "rollouts.per_prompt": 8,
    "prompts.per_step": 4,
}
"""With these, plain recipes learn the letter task in 30 steps, and few completions are cut off."""


def brief_letter(prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
    """Right is what begins with a letter and comes to an end within 25 tokens."""
    right = starts_with_a_letter(prompts, texts)
    return [v * (len(text) < 50) for v, text in zip(right, texts, strict=True)]


def letters(verdict: Verdict = brief_letter, *more: RewardTerm, weight: float = 1.0) -> Task:
    """Sums as prompts; right is what `verdict` says."""
    made = [Prompt(f"p{i}", f"{i // 10}+{i % 10}=", "a") for i in range(50)]
    term = RewardTerm("accuracy", verdict, weight, correctness=True)
    return Task("letters", made[:10], made[10:], (term, *more))


class Odd(LocalEngine):
    """An engine with something wrong about it."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy.model, policy.decode)


class ReportsAnotherTemperature(Odd):
    """Reports log-probabilities that are 30% off."""

    def sample(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        found = super().sample(requests)
        return [dataclasses.replace(s, logp=tuple(1.3 * v for v in s.logp)) for s in found]


class NeverSyncs(Odd):
    """Samples from the weights of the start, always."""

    def __init__(self, policy: Policy) -> None:
        LocalEngine.__init__(self, copy.deepcopy(policy.model), policy.decode)

    def sync(self, policy: Policy) -> None:
        self.version = policy.version


class IgnoresStops(Odd):
    """Goes on after the end-of-text token."""

    def sample(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        free = [dataclasses.replace(r, stop_ids=frozenset(), max_tokens=12) for r in requests]
        found = super().sample(free)
        return [dataclasses.replace(s, request=r) for s, r in zip(found, requests, strict=True)]


def always(value: float) -> Verdict:
    """A verdict that never differs."""
    return lambda prompts, texts: [value] * len(texts)


def coin() -> Verdict:
    """A verifier that is wrong one time in four, at random."""
    calls = iter(range(10**9))

    def verdict(prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
        right = starts_with_a_letter(prompts, texts)
        flip = [hashlib.sha256(str(next(calls)).encode()).digest()[0] < 64 for _ in texts]
        return [1 - v if f else v for v, f in zip(right, flip, strict=True)]

    return verdict


def first_is_plus(prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
    """Right is what begins with a plus sign."""
    return [float(text[:1] == "+") for text in texts]


def three_letters(prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
    """Right is what begins with three letters and goes on."""
    return [float(len(text) > 3 and set(text[:3]) <= {"a", "b"}) for text in texts]


def digits(prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
    """Pays for one of three digits at the start of something brief."""
    return [float(text[:1] in ("1", "2", "3") and len(text) < 50) for text in texts]


def long(prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
    """Pays for length alone."""
    return [len(text) / 56 for text in texts]


def only_in_training(prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
    """A letter is taken for right in training; held-out problems want a plus sign."""
    rules = [brief_letter, first_is_plus]
    return [rules[int(p.id[1:]) >= 10]([p], [t])[0] for p, t in zip(prompts, texts, strict=True)]


def often_nothing(prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float | None]:
    """No verdict on a third of the completions, by their length."""
    right = starts_with_a_letter(prompts, texts)
    return [None if len(text) % 3 == 0 else v for v, text in zip(right, texts, strict=True)]


def jackpots() -> RewardTerm:
    """Nearly always 0, and a fortune in three steps of the run."""
    calls = iter(range(10**9))

    def term(prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
        rich = next(calls) in (15, 22, 30)
        return [200.0 * rich * (len(text) % 2) for text in texts]

    return RewardTerm("jackpot", term)


def twice(task: Task) -> Task:
    """The same problems in training and held out."""
    again = [dataclasses.replace(p, id=f"h{p.id}") for p in task.train]
    return dataclasses.replace(task, heldout=[*again, *task.heldout])


def with_bos(task: Task) -> Task:
    """Prompts that hold the begin-of-text token as text."""
    train, heldout = (
        [dataclasses.replace(p, messages=f"<s>{p.text}") for p in prompts]
        for prompts in (task.train, task.heldout)
    )
    return dataclasses.replace(task, train=train, heldout=heldout)


@dataclass(frozen=True)
class Real:
    """A real run: its task, recipe and engine, and what is to be found."""

    task: Callable[[], Task] = letters
    recipe: str = "grpo"
    numbers: dict[str, Any] = field(default_factory=dict)
    engine: Callable[[Policy], LocalEngine] | None = None
    expected: frozenset[str] = frozenset()
    consequences: frozenset[str] = frozenset()
    steps: int = 40

    def shortened(self, steps: int) -> Real:
        """The same run with fewer steps."""
        return dataclasses.replace(self, steps=steps)


def _real(expected: str, *consequences: str, **settings: Any) -> Real:
    return Real(expected=frozenset({expected}), consequences=frozenset(consequences), **settings)


SICK_RUNS: dict[str, Real] = {
    "always right": _real("advantage-collapse", task=lambda: letters(always(1.0))),
    "never right": _real("advantage-collapse", task=lambda: letters(always(0.0))),
    "rate of 0": _real("dead-learning-rate", numbers={"updates.optimizer.lr": 0.0}),
    "rate of 1e-12": _real("dead-learning-rate", numbers={"updates.optimizer.lr": 1e-12}),
    # Nothing is right within three tokens, so there is no signal either.
    "too few tokens": _real(
        "truncation-bias",
        "advantage-collapse",
        task=lambda: letters(three_letters),
        numbers={"rollouts.max_tokens": 3},
    ),
    "other log-probs": _real("sampler-mismatch", engine=ReportsAnotherTemperature),
    "never synced": _real("stale-data", "kl-runaway", engine=NeverSyncs),
    "rarely synced": _real(
        "stale-data", "kl-runaway", "policy-collapse", engine=lambda p: LaggingEngine(p, 20)
    ),
    # What is paid for has nothing to do with the verdict, and is soon done by every rollout.
    "pays for digits": _real(
        "reward-terms-disagree",
        "policy-collapse",
        "advantage-collapse",
        "rollout-silencing",
        "kl-runaway",
        task=lambda: letters(brief_letter, RewardTerm("digits", digits), weight=0.0),
    ),
    "pays for length": _real(
        "length-inflation",
        "truncation-bias",
        "reward-terms-disagree",
        "advantage-collapse",
        "rollout-silencing",
        "kl-runaway",
        task=lambda: letters(first_is_plus, RewardTerm("long", long), weight=0.0),
    ),
    # Short completions, so that some occur again.
    "random verifier": _real(
        "verifier-suspect",
        "truncation-bias",
        task=lambda: letters(coin()),
        numbers={"rollouts.max_tokens": 3},
    ),
    "shared prompts": _real("duplicate-prompts", task=lambda: twice(letters())),
    "doubled BOS": _real("special-tokens", task=lambda: with_bos(letters())),
    "no stop": _real("special-tokens", "truncation-bias", engine=IgnoresStops),
    "other rule held out": _real("heldout-flat", task=lambda: letters(only_in_training)),
    "no verdicts": _real("unscored", task=lambda: letters(often_nothing)),
    "jackpots": _real(
        "gradient-spikes",
        "reward-terms-disagree",
        recipe="reinforce",
        task=lambda: letters(brief_letter, jackpots()),
    ),
    "many steps a batch": _real(
        "stale-data",
        "clip-saturation",
        "kl-runaway",
        "one-sided-clipping",
        "policy-collapse",
        numbers={"updates.rule.epochs": 12, "updates.optimizer.lr": 0.03},
    ),
}

HEALTHY_RUNS: dict[str, Real] = {
    recipe: Real(recipe=recipe)
    for recipe in ("grpo", "dapo", "rloo", "dr-grpo", "reinforce++-baseline", "gspo", "cispo")
} | {
    # Some of what trains is old, on purpose, and the policy hasn't gone far from it.
    "rlep": Real(recipe="rlep"),
    "four steps a batch": Real(numbers={"updates.rule.minibatches": 4}),
}


def learned(case: Case) -> bool:
    """Whether the run ended with 70% right held out: one that didn't isn't healthy, whatever it is.

    Made at these learning rates, some plain runs do collapse (sequence ratios without a penalty).
    """
    return float(read_rows(case.path / "evals.jsonl")[-1]["pass@1"]) >= 0.7


def run(name: str, real: Real, folder: Path, seed: int) -> Case:
    """Train, and say what is to be found in the run's folder."""
    policy = tiny_policy(seed)
    polyopt.train(
        policy,
        real.task(),
        real.recipe,
        run=folder,
        steps=real.steps,
        seed=seed,
        overrides={**NUMBERS, **real.numbers},
        engine=real.engine(policy) if real.engine else None,
        quiet=True,
        checkpoint_every=0,
        log_rollouts_every=4,
    )
    return Case(f"{name}, seed {seed}", folder, real.expected, real.consequences)
