"""`load_task`: prompts and their verifier from whatever the user has.

    reasoning_gym:NAME[?OPTION=VALUE&...]   generated problems with their own verifier
    path/to/data.jsonl                      also .json, .csv, .tsv, .parquet
    owner/name[?config=NAME]                a data set of the Hugging Face hub, or a local folder
    path/to/file.py:object                  a Task, a function returning one, or a list of rows

Held-out prompts come from `heldout`; else they are those whose text has the lowest hashes (files),
or are generated from another seed (reasoning-gym). No problem is in both sets.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from polyopt.batch import Prompt
from polyopt.errors import DataError, did_you_mean
from polyopt.python_files import failing_line, load_object, split_python_spec
from polyopt.rewards.protocol import RewardTerm
from polyopt.rewards.specs import needs_answer, parse_reward, parse_rewards
from polyopt.tasks.files import READERS, read_rows
from polyopt.tasks.hub import read_hub_rows
from polyopt.tasks.option_values import check_known, merge_options, parse_query
from polyopt.tasks.reasoning_gym import PREFIX, gym_names, gym_task
from polyopt.tasks.rows import ANSWER_COLUMNS, Columns, Row, find_columns, make_prompt
from polyopt.tasks.splits import first_by_hash, heldout_keys, problem_key, without
from polyopt.tasks.task import Task

logger = logging.getLogger(__name__)

Rows = Sequence[Mapping[str, Any] | Prompt]
"""Problems as plain data: mappings with a prompt and an answer, or `Prompt`s."""


@dataclass(frozen=True)
class Request:
    """What was asked for beside the spec; see `load_task`."""

    options: Mapping[str, Any] = field(default_factory=dict)
    prompt_column: str | None = None
    answer_column: str | None = None
    split: str | None = None
    heldout: str | Path | None = None
    heldout_size: int | None = None
    seed: int = 0

    def refuse(self, spec: str, kind: str, *names: str) -> None:
        """Fail if something was given that this kind of task has no use for."""
        for name in names:
            if getattr(self, name):
                flag = {"options": "--task-option"}.get(name, f"--{name.replace('_', '-')}")
                raise DataError(
                    f"task {spec!r} is {kind}: {flag} ({getattr(self, name)}) means nothing there. "
                    "Leave it out."
                )


def load_task(
    task: str | Path | Task | Rows,
    *,
    rewards: Sequence[str | RewardTerm] = (),
    options: Mapping[str, Any] | None = None,
    prompt_column: str | None = None,
    answer_column: str | None = None,
    split: str | None = None,
    heldout: str | Path | None = None,
    heldout_size: int | None = None,
    seed: int = 0,
    system: str | None = None,
) -> Task:
    """The task that a spec, a file or plain data describes.

    Args:
        task: A spec as in the module's docstring, a `Task`, or a list of `{"prompt", "answer"}`.
        rewards: Reward specs (`"0.2*format"`, see `polyopt.rewards.specs`) or terms, in place of
            the task's own; they may name the task's own (`"accuracy"`). Without any, data with
            answers are judged by `exact`.
        options: Options of a generated task or of a function in a Python file, by name.
        prompt_column: Column of the prompts; a usual name is found without it.
        answer_column: Column of the answers; likewise.
        split: Split of a hub data set (default `train`).
        heldout: File of held-out problems; for a hub data set also the name of a split.
        heldout_size: Number of held-out problems.
        seed: Seed of generated problems.
        system: System message put before every prompt; None keeps the task's own.

    Raises:
        UserError: Names what can't be used, its value and the way out.
    """
    request = Request(
        options or {}, prompt_column, answer_column, split, heldout, heldout_size, seed
    )
    judged = _judged(_load(task, request), rewards)
    return judged if system is None else replace(judged, system=system)


def _load(task: str | Path | Task | Rows, request: Request) -> Task:
    if isinstance(task, Task):
        request.refuse(task.name, "a Task already", "options")
        return _ready_task(task, request)
    if not isinstance(task, str | Path):
        request.refuse("rows", "plain data", "options", "split")
        return _from_data(task, "rows", request)
    spec = str(task)
    in_file = split_python_spec(spec)
    if spec.startswith(PREFIX):
        return _from_gym(spec, request)
    if in_file is not None:
        return _from_python(spec, in_file[0], in_file[1], request)
    if Path(spec).suffix.lower() in READERS or Path(spec).is_file():
        request.refuse(spec, "a file", "options", "split")
        return _from_rows(read_rows(spec), spec, request)
    name, inline = parse_query(spec)
    if Path(name).is_dir() or (name.count("/") == 1 and not name.startswith((".", "/", "~"))):
        return _from_hub(spec, name, merge_options(spec, inline, request.options), request)
    raise DataError(_unknown(spec))


def _from_gym(spec: str, request: Request) -> Task:
    request.refuse(spec, "generated", "prompt_column", "answer_column", "split", "heldout")
    name, inline = parse_query(spec.removeprefix(PREFIX))
    options = merge_options(spec, inline, request.options)
    query = "&".join(f"{key}={options[key]}" for key in sorted(options))
    full = f"{PREFIX}{name}?{query}" if query else f"{PREFIX}{name}"
    return gym_task(full, name, options, request.heldout_size, request.seed)


def _from_hub(spec: str, name: str, options: Mapping[str, Any], request: Request) -> Task:
    check_known(spec, options, ["config"])
    config = options.get("config")
    rows = read_hub_rows(name, request.split or "train", config)
    heldout = request.heldout
    if heldout is None or Path(heldout).suffix.lower() in READERS or Path(heldout).exists():
        return _from_rows(rows, spec, request)
    return _from_rows(rows, spec, request, read_hub_rows(name, str(heldout), config))


def _from_python(spec: str, path: str, name: str, request: Request) -> Task:
    found = load_object(path, name)
    if callable(found) and not isinstance(found, Task):
        found = _called(found, spec, path, request)
    else:
        request.refuse(spec, f"a {type(found).__name__}, not a function", "options")
    if isinstance(found, Task):
        return _ready_task(found, request)
    request.refuse(spec, "plain data", "split")
    if isinstance(found, Sequence) and not isinstance(found, str | bytes):
        return _from_data(found, spec, request)
    raise DataError(
        f"task {spec!r} is of type {type(found).__name__}; it must be a polyopt Task, a function "
        'returning one, or a list of {"prompt": ..., "answer": ...}.'
    )


def _called(function: Any, spec: str, path: str, request: Request) -> Any:
    """What a user's function returns, given the options and, if it takes one, the seed."""
    signature = inspect.signature(function)
    arguments = dict(request.options)
    if "seed" in signature.parameters:
        arguments.setdefault("seed", request.seed)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        given = ", ".join(sorted(request.options)) or "none"
        raise DataError(
            f"task {spec!r} has parameters {signature}, which don't fit the options given "
            f"({given}): {error}. Give each as --task-option NAME=VALUE."
        ) from None
    try:
        return function(**arguments)
    except Exception as error:
        raise DataError(
            f"task {spec!r} raised at {failing_line(error, path)}. It must return a Task or a list "
            "of rows."
        ) from error


def _ready_task(task: Task, request: Request) -> Task:
    """A task that exists, with fewer held-out prompts if so many were asked for."""
    request.refuse(
        task.name, "a Task already", "prompt_column", "answer_column", "split", "heldout"
    )
    if not len(task.train):
        raise DataError(f"task {task.name!r} has no training prompts: give it some in `train`.")
    if request.heldout_size is None:
        return task
    return replace(task, heldout=first_by_hash(task.heldout, request.heldout_size, task.name))


def _from_data(data: Rows, name: str, request: Request) -> Task:
    """A task of rows given as Python objects."""
    if not data:
        raise DataError(f"task {name!r} is an empty list: give at least two problems.")
    if all(isinstance(one, Prompt) for one in data):
        prompts = [one for one in data if isinstance(one, Prompt)]
        columns = Columns(request.prompt_column or "prompt", request.answer_column or "answer")
        return _divided(prompts, columns, name, request)
    rows = []
    for i, one in enumerate(data):
        if not isinstance(one, Mapping):
            raise DataError(
                f"task {name!r}: row {i} is of type {type(one).__name__} ({one!r:.60}); rows are "
                '{"prompt": ..., "answer": ...}, or all of them are polyopt Prompts.'
            )
        rows.append(Row(f"{name} row {i}", one))
    return _from_rows(rows, name, request)


def _from_rows(
    rows: Sequence[Row], name: str, request: Request, heldout: Sequence[Row] | None = None
) -> Task:
    """A task of records; `heldout` are records of another split of the same data set."""
    columns = find_columns(rows, name, request.prompt_column, request.answer_column)
    prompts = [make_prompt(row, columns, f"train/{i}") for i, row in enumerate(rows)]
    return _divided(prompts, columns, name, request, heldout)


def _divided(
    prompts: Sequence[Prompt],
    columns: Columns,
    name: str,
    request: Request,
    heldout: Sequence[Row] | None = None,
) -> Task:
    """A task of prompts, with held-out ones given, from a file, or split off by hash."""
    if request.heldout is None:
        return _answered(_split(prompts, name, request.heldout_size))
    source = str(request.heldout)
    rows = read_rows(source) if heldout is None else heldout
    find_columns(rows, source, columns.prompt, columns.answer)  # the same columns must be there
    held = [make_prompt(row, columns, f"heldout/{i}") for i, row in enumerate(rows)]
    held = first_by_hash(held, request.heldout_size, source)
    return _answered(Task(name, tuple(without(prompts, held, name)), tuple(held)))


def _split(prompts: Sequence[Prompt], name: str, size: int | None) -> Task:
    keys = [problem_key(prompt.text) for prompt in prompts]
    out = heldout_keys([prompt.text for prompt in prompts], name, size)
    train = [prompt for prompt, key in zip(prompts, keys, strict=True) if key not in out]
    held: dict[str, Prompt] = {}
    for prompt, key in zip(prompts, keys, strict=True):
        if key in out:
            held.setdefault(key, prompt)
    repeats = len(prompts) - len(train) - len(held)
    if repeats:
        logger.warning("%s: %d rows repeat a held-out problem; they are left out.", name, repeats)
    return Task(name, tuple(train), tuple(_renamed(list(held.values()))))


def _renamed(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Rows of the training file that are held out say so in their ids."""
    return [replace(p, id=p.id.replace("train/", "heldout/", 1)) for p in prompts]


def _answered(task: Task) -> Task:
    """Data with answers are judged by `exact` unless other rewards are asked for."""
    has_answers = all(prompt.answer is not None for prompt in task.train)
    return task.with_rewards([parse_reward("exact")] if has_answers else [])


def _judged(task: Task, rewards: Sequence[str | RewardTerm]) -> Task:
    """The task with the rewards asked for, once it is known that they can be computed."""
    terms = parse_rewards(rewards, task.rewards) if rewards else tuple(task.rewards)
    if not terms:
        raise DataError(
            f"task {task.name!r} has no answers (looked for columns {', '.join(ANSWER_COLUMNS)}) "
            "and no reward. Name the column with --answer-column, or judge completions with "
            "--reward path/to/file.py:function."
        )
    blind = next((term for term in terms if needs_answer(term)), None)
    if blind is not None and task.train[0].answer is None:
        raise DataError(
            f"reward {blind.name!r} compares with the answer, but prompt {task.train[0].id!r} of "
            f"task {task.name!r} has none. Name the column with --answer-column, or use another "
            "--reward."
        )
    return task.with_rewards(terms)


def _unknown(spec: str) -> str:
    """What to say to a spec that is none of the known forms."""
    name = spec.partition("?")[0]
    forms = (
        f"{PREFIX}NAME, a file ({', '.join(READERS)}), owner/name on the hugging face hub, or "
        "path/to/file.py:object"
    )
    near = did_you_mean(name.replace("-", "_"), gym_names())
    hint = ""
    if near.startswith("did you mean"):
        hint = " " + near.replace("did you mean ", f"Did you mean {PREFIX}").replace(
            " or ", f" or {PREFIX}"
        )
    missing = " (no such file)" if os.sep in spec else ""
    return f"no task is called {spec!r}{missing}. A task is {forms}.{hint}"
