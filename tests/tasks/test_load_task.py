"""`load_task`: splits, Python files, plain data, hub data sets, rewards."""

from __future__ import annotations

import json
import logging
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from polyopt.batch import Prompt
from polyopt.errors import DataError, UserError
from polyopt.rewards.protocol import RewardTerm
from polyopt.tasks.load import load_task
from polyopt.tasks.task import Task

SUMS: list[dict[str, Any]] = [
    {"prompt": f"What is {i} + {i}?", "answer": str(2 * i)} for i in range(50)
]


def texts(prompts: Any) -> list[str]:
    return [prompt.text for prompt in prompts]


def jsonl(path: Path, records: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def test_a_fifth_is_held_out_and_no_problem_is_in_both() -> None:
    task = load_task(SUMS)
    assert (len(task.train), len(task.heldout)) == (40, 10)
    assert set(texts(task.train)) | set(texts(task.heldout)) == {r["prompt"] for r in SUMS}
    assert len({prompt.id for prompt in [*task.train, *task.heldout]}) == 50


def test_at_most_two_hundred_are_held_out_by_default() -> None:
    records = [{"prompt": f"{i}?", "answer": "x"} for i in range(2000)]
    assert len(load_task(records).heldout) == 200


def test_the_split_depends_on_the_texts_and_not_on_their_order_or_the_seed() -> None:
    shuffled = random.Random(0).sample(SUMS, len(SUMS))
    assert set(texts(load_task(SUMS).heldout)) == set(texts(load_task(shuffled, seed=9).heldout))


def test_rows_that_repeat_a_problem_stay_on_one_side(caplog: pytest.LogCaptureFixture) -> None:
    spaced = [{**record, "prompt": record["prompt"].replace(" ", "  ")} for record in SUMS]
    with caplog.at_level(logging.WARNING):
        task = load_task([*SUMS, *spaced])
    assert (len(task.train), len(task.heldout)) == (80, 10)
    held = set(texts(task.heldout))
    assert not held & {text.replace("  ", " ") for text in texts(task.train)}
    assert "10 rows repeat a held-out problem" in caplog.text


def test_the_held_out_size_can_be_chosen_down_to_none() -> None:
    assert len(load_task(SUMS, heldout_size=7).heldout) == 7
    task = load_task(SUMS, heldout_size=0)
    assert (len(task.train), len(task.heldout)) == (50, 0)


def test_holding_out_everything_is_refused_with_the_possible_sizes() -> None:
    with pytest.raises(DataError, match=r"can't hold out 50 of 50.*from 0 to 49"):
        load_task(SUMS, heldout_size=50)


def test_a_held_out_file_is_kept_whole_and_its_problems_leave_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = jsonl(tmp_path / "train.jsonl", SUMS)
    heldout = jsonl(tmp_path / "test.jsonl", [*SUMS[:3], {"prompt": "new?", "answer": "1"}])
    with caplog.at_level(logging.WARNING):
        task = load_task(file, heldout=heldout)
    assert texts(task.heldout) == [*(r["prompt"] for r in SUMS[:3]), "new?"]
    assert texts(task.train) == [r["prompt"] for r in SUMS[3:]]
    assert "3 of 50 training prompts are also held out" in caplog.text
    assert len(load_task(file, heldout=heldout, heldout_size=2).heldout) == 2
    with pytest.raises(DataError, match=r"can't take 5 held-out prompts of 4"):
        load_task(file, heldout=heldout, heldout_size=5)


def test_a_held_out_file_with_every_training_problem_is_refused(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "train.jsonl", SUMS)
    with pytest.raises(DataError, match=r"every training prompt is also held out.*--heldout"):
        load_task(file, heldout=file)


def test_a_held_out_file_needs_the_same_columns(tmp_path: Path) -> None:
    heldout = jsonl(tmp_path / "test.jsonl", [{"prompt": "x", "target": "1"}])
    with pytest.raises(DataError, match=r"test\.jsonl has no column 'answer'"):
        load_task(SUMS, heldout=heldout)


def test_data_with_answers_are_judged_by_exact() -> None:
    task = load_task(SUMS)
    assert task.accuracy_term is not None
    assert task.accuracy_term.name == "exact"
    assert list(task.accuracy_term.function([Prompt("x", "?", "4")], ["4"])) == [1.0]


def test_rewards_that_are_asked_for_replace_the_default() -> None:
    task = load_task(SUMS, rewards=["number", "0.2*format"])
    assert [(t.name, t.weight) for t in task.rewards] == [("number", 1.0), ("format", 0.2)]


def test_data_without_answers_need_a_reward_that_reads_none() -> None:
    records = [{"prompt": f"{i}?"} for i in range(5)]
    with pytest.raises(DataError, match=r"no answers \(looked for columns answer.*--reward"):
        load_task(records)
    with pytest.raises(DataError, match=r"reward 'exact' compares.*'train/\d'.*--answer-column"):
        load_task(records, rewards=["exact"])
    task = load_task(records, rewards=["format"])
    assert [t.name for t in task.rewards] == ["format"]


def test_a_task_is_returned_as_it_is_or_with_other_rewards() -> None:
    own = RewardTerm("mine", lambda p, c: [1.0] * len(c), correctness=True)
    task = Task("t", [Prompt("a", "x", "1")], [Prompt("b", "y", "2"), Prompt("c", "z")], (own,))
    assert load_task(task) == task
    assert [t.name for t in load_task(task, rewards=["2*mine"]).rewards] == ["mine"]
    assert len(load_task(task, heldout_size=1).heldout) == 1
    with pytest.raises(DataError, match=r"task 't' is a Task already: --prompt-column \(q\)"):
        load_task(task, prompt_column="q")


def test_a_list_of_prompts_is_split_as_it_stands() -> None:
    prompts = [Prompt(f"p{i}", f"{i}?", "1") for i in range(10)]
    task = load_task(prompts)
    assert {p.id for p in [*task.train, *task.heldout]} == {p.id for p in prompts}
    assert all(isinstance(p.messages, str) for p in task.train)


def test_rows_of_another_type_are_named() -> None:
    with pytest.raises(DataError, match=r"row 1 is of type str \('oops'\)"):
        load_task([SUMS[0], "oops"])  # type: ignore[list-item]
    with pytest.raises(DataError, match="empty list"):
        load_task([])


SOURCE = """
from polyopt.batch import Prompt
from polyopt.rewards.protocol import RewardTerm
from polyopt.tasks.task import Task

rows = [{"prompt": f"{i}?", "answer": str(i)} for i in range(10)]
ready = Task("ready", [Prompt("a", "x", "1")], [], (RewardTerm("one", lambda p, c: [1] * len(c)),))

def make(size="3", seed=0):
    return Task(f"made {size} {seed}", ready.train * int(size), [], ready.rewards)

def listed():
    return rows

def fails():
    return rows[99]

number = 17
"""


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return str(path)


def test_a_python_file_gives_a_task_a_function_or_rows(source: str) -> None:
    assert load_task(f"{source}:ready").name == "ready"
    made = load_task(f"{source}:make", options={"size": "5"}, seed=4)
    assert (made.name, len(made.train)) == ("made 5 4", 5)
    for name in ("rows", "listed"):
        assert len(load_task(f"{source}:{name}").heldout) == 2


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("redy", {}, r"has no 'redy': did you mean ready\?"),
        ("number", {}, r"mine\.py:number' is of type int; it must be a polyopt Task"),
        ("fails", {}, r"mine\.py:fails' raised at mine\.py line 16: IndexError"),
        ("make", {"sise": "3"}, r"parameters \(size='3', seed=0\).*\(sise\).*--task-option"),
        ("ready", {"size": "3"}, r"is a Task, not a function: --task-option"),
    ],
)
def test_an_object_that_cannot_be_used_is_named(
    source: str, name: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        load_task(f"{source}:{name}", options=options)


def test_a_python_file_that_is_missing_fails_or_names_nothing_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no Python file .*nowhere\.py"):
        load_task(f"{tmp_path}/nowhere.py:task")
    (tmp_path / "bad.py").write_text("import os\nraise RuntimeError('boom')\n")
    with pytest.raises(DataError, match=r"bad\.py line 2: RuntimeError: boom"):
        load_task(f"{tmp_path}/bad.py:task")
    (tmp_path / "good.py").write_text("rows = []\n")
    with pytest.raises(DataError, match=r"which object\? .*names there: rows"):
        load_task(f"{tmp_path}/good.py")


def test_options_that_mean_nothing_for_a_file_are_refused(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "a.jsonl", SUMS)
    with pytest.raises(DataError, match=r"a\.jsonl' is a file: --task-option .*Leave it out"):
        load_task(file, options={"size": "3"})
    with pytest.raises(DataError, match=r"a\.jsonl' is a file: --split \(test\)"):
        load_task(file, split="test")


def test_a_spec_of_no_known_form_lists_the_forms_and_near_names() -> None:
    with pytest.raises(
        DataError, match=r"no task is called 'chain_sums'.*reasoning_gym:NAME.*owner/name.*Did you "
        r"mean reasoning_gym:chain_sum"
    ):  # fmt: skip
        load_task("chain_sums")


def test_a_folder_is_read_by_datasets_with_its_splits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("datasets")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    tmp_path = tmp_path / "data"
    tmp_path.mkdir()
    jsonl(tmp_path / "train.jsonl", SUMS)
    jsonl(tmp_path / "test.jsonl", [{"prompt": "new?", "answer": "1"}])
    task = load_task(str(tmp_path), heldout="test")
    assert (len(task.train), texts(task.heldout)) == (50, ["new?"])
    assert len(load_task(str(tmp_path), split="train[:10]", heldout_size=3).train) == 7
    with pytest.raises(DataError, match=r"split 'nope'\) can't be loaded: .*--split"):
        load_task(str(tmp_path), split="nope")
    with pytest.raises(DataError, match=r"no option 'confg': did you mean config"):
        load_task(str(tmp_path), options={"confg": "x"})


def test_a_hub_data_set_without_datasets_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"'openai/gsm8k'.*pip install 'polyopt\[data\]'"):
        load_task("openai/gsm8k")
