"""Problems that are generated with their verifier: the data sets of the package reasoning-gym.

A completion's answer is what stands in its last `<answer>` tag. Without a tag it is the whole text
after `</think>`, or its last line if that scores higher: models that were never told of tags
answer in plain text, some of them after working it out, and a board of several lines is one answer.
The score is the data set's own, from 0 to 1; several give part of the credit to an answer that
contains the right one, and only 1 means right.

Verifiers of reasoning-gym evaluate expressions that the model wrote (`eval`, SymPy) and some never
return (`9**9**9`), so they run in a process of their own with five seconds an answer.
"""

from __future__ import annotations

import itertools
import logging
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

from polyopt.batch import Prompt
from polyopt.errors import DataError, UserError, did_you_mean
from polyopt.rewards.answers import last_line, tagged, visible
from polyopt.rewards.judge import GaveUp, shared_judge
from polyopt.rewards.protocol import RewardTerm
from polyopt.seeding import derive_seed
from polyopt.tasks.option_values import read_options
from polyopt.tasks.splits import HELDOUT_SIZE, problem_key
from polyopt.tasks.task import Task

logger = logging.getLogger(__name__)

PREFIX = "reasoning_gym:"
TRAIN_SIZE = 2000
"""Training problems when the option `size` isn't given."""
MAX_DRAWS = 64
"""How often a problem is drawn anew before giving up on finding one that isn't held out."""

_FILE = Path(__file__).with_name("gym_judge.py")


def gym_task(
    spec: str, name: str, options: Mapping[str, Any], heldout_size: int | None, seed: int
) -> Task:
    """The task of one reasoning-gym data set.

    Args:
        spec: What the user wrote, for errors and as the task's name.
        name: Name of the data set.
        options: Fields of its configuration; `size` is the number of training problems and `seed`
            replaces `seed`.
        heldout_size: Number of held-out problems; None for `HELDOUT_SIZE`.
        seed: Seed from which train and held-out problems are derived.

    Raises:
        UserError: reasoning-gym isn't installed.
        DataError: Unknown data set or option, bad values, or too few different problems.
    """
    config = _known_datasets(name)[name]
    values = read_options(spec, config, {"size": TRAIN_SIZE, **options})
    own_seed = values.pop("seed", None)
    seed = seed if own_seed is None else own_seed
    size = values.pop("size")
    wanted = HELDOUT_SIZE if heldout_size is None else heldout_size
    if size < 1 or wanted < 0:
        raise DataError(
            f"task {spec!r}: size={size} and heldout size {wanted}; the first must be at least 1, "
            "the second at least 0."
        )
    source = Source(spec, name, values, seed)
    heldout = tuple(source.heldout(wanted))
    excluded = frozenset(problem_key(prompt.text) for prompt in heldout)
    term = RewardTerm("accuracy", GymScore(name, values), correctness=True)
    return Task(spec, Problems(source, size, excluded), heldout, (term,))


@dataclass(frozen=True)
class GymScore:
    """The data set's own score of each completion (see the module's docstring).

    Attributes:
        name: Name of the data set.
        config: Options that it was made with.
    """

    name: str
    config: Mapping[str, Any]

    def __call__(self, prompts: Sequence[Prompt], completions: Sequence[str]) -> list[float]:
        """Scores from 0 to 1."""
        pairs = zip(prompts, completions, strict=True)
        return [self._score(prompt, completion) for prompt, completion in pairs]

    def _score(self, prompt: Prompt, completion: str) -> float:
        shown = visible(completion)
        answer = tagged(shown)
        if answer is not None:
            return self._judge(prompt, answer)
        score = self._judge(prompt, shown)
        line = last_line(shown)
        return score if score >= 1 or line == shown else max(score, self._judge(prompt, line))

    def _judge(self, prompt: Prompt, answer: str) -> float:
        if not answer:
            return 0.0
        setup = pickle.dumps((self.name, {**self.config, "seed": 0, "size": 1}))
        entry = {
            "question": prompt.text,
            "answer": prompt.answer,
            "metadata": dict(prompt.metadata),
        }
        try:
            return float(shared_judge(_FILE, "make", setup)(answer, entry))
        except GaveUp:
            return 0.0


@dataclass
class Source:
    """Draws of problems: the data set made anew for each (split, draw), each with its own seed."""

    spec: str
    name: str
    config: Mapping[str, Any]
    seed: int
    made: dict[tuple[str, int, int], Any] = field(default_factory=dict)

    def entry(self, split: str, draw: int, index: int, size: int) -> dict[str, Any]:
        """Problem `index` of a draw."""
        key = (split, draw, size)
        if key not in self.made:
            # Many data sets seed problem i with seed + i: seeds must lie far apart.
            seed = derive_seed(self.seed, "task", self.name, split, draw) % 2**31
            self.made[key] = self._make(seed, size)
        entry: dict[str, Any] = self.made[key][index]
        return entry

    def heldout(self, wanted: int) -> Iterator[Prompt]:
        """Different problems, at most about half of those that there are.

        A problem may be held out if its hash says so: where the data set has few problems, the
        other half is left to train on.
        """
        seen: set[str] = set()
        found_before = -1
        size = max(2 * wanted, 64)
        for draw, index in itertools.product(range(MAX_DRAWS), range(size)):
            if len(seen) == wanted or (index == 0 and len(seen) == found_before):
                break  # all found, or a whole draw showed nothing new
            found_before = len(seen) if index == 0 else found_before
            entry = self.entry("heldout", draw, index, size)
            key = problem_key(entry["question"])
            if int(key, 16) % 2 == 0 and key not in seen:
                yield _prompt(f"heldout/{len(seen)}", entry)
                seen.add(key)
        if len(seen) < wanted:
            logger.warning(
                "task %r has few different problems: %d are held out instead of %d.",
                self.spec,
                len(seen),
                wanted,
            )

    def _make(self, seed: int, size: int) -> Any:
        import reasoning_gym

        try:
            return reasoning_gym.create_dataset(self.name, seed=seed, size=size, **self.config)
        except Exception as error:  # validation asserts; some generators raise on odd values
            given = ", ".join(f"{key}={value}" for key, value in self.config.items())
            raise DataError(
                f"task {self.spec!r}: reasoning-gym refuses these options ({given or 'none'}; "
                f"size={size}): {error or type(error).__name__}."
            ) from error


class Problems(Sequence[Prompt]):
    """Training problems, generated when they are asked for.

    A problem that is held out is drawn anew from another seed.

    Raises:
        DataError: (on access) Every draw is held out.
    """

    def __init__(self, source: Source, size: int, excluded: frozenset[str]) -> None:
        self.source, self.size, self.excluded = source, size, excluded
        self._made: dict[int, Prompt] = {}
        self._generate(0)  # options that the generator refuses fail here, not in the first step

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, index: int) -> Prompt: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Prompt]: ...

    def __getitem__(self, index: int | slice) -> Prompt | Sequence[Prompt]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self.size))]
        place = range(self.size)[index]
        if place not in self._made:
            self._made[place] = self._generate(place)
        return self._made[place]

    def _generate(self, index: int) -> Prompt:
        for draw in range(MAX_DRAWS):
            entry = self.source.entry("train", draw, index, self.size)
            if problem_key(entry["question"]) not in self.excluded:
                return _prompt(f"train/{index}", entry)
        raise DataError(
            f"task {self.source.spec!r} has too few different problems: all {MAX_DRAWS} draws for "
            f"training problem {index} are held out. Widen its options or lower --heldout-size."
        )


def gym_names() -> list[str]:
    """Names of the data sets there are; none if reasoning-gym isn't installed."""
    try:
        from reasoning_gym.factory import DATASETS
    except ImportError:
        return []
    return sorted(DATASETS)


def _known_datasets(name: str) -> dict[str, type]:
    try:
        import reasoning_gym  # noqa: F401  (registers its data sets)
        from reasoning_gym.factory import DATASETS
    except ImportError:
        raise UserError(
            f"task '{PREFIX}{name}' needs the package reasoning-gym, which isn't installed: "
            "pip install 'polyopt[tasks]'."
        ) from None
    if name not in DATASETS:
        raise DataError(f"reasoning_gym has no data set {name!r}: {did_you_mean(name, DATASETS)}")
    return {known: config for known, (_, config) in DATASETS.items()}


def _prompt(name: str, entry: Mapping[str, Any]) -> Prompt:
    messages = ({"role": "user", "content": entry["question"]},)
    return Prompt(name, messages, entry["answer"], entry["metadata"])
