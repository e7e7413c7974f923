"""Data files: every kind read, and every way a file can be wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from polyopt.errors import DataError, UserError
from polyopt.tasks.load import load_task

SUMS = [{"prompt": f"What is {i} + {i}?", "answer": str(2 * i)} for i in range(20)]


def write(folder: Path, name: str, text: str | bytes) -> str:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def lines(records: Sequence[object]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def problems(spec: str, **more: Any) -> dict[str, Any]:
    task = load_task(spec, **more)
    return {prompt.text: prompt.answer for prompt in [*task.train, *task.heldout]}


EXPECTED = {record["prompt"]: record["answer"] for record in SUMS}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.jsonl", "\ufeff" + lines(SUMS[:10]) + "\n\r\n" + lines(SUMS[10:])),
        ("a.json", json.dumps(SUMS)),
        ("lines.json", lines(SUMS)),
        ("a.csv", "prompt,answer\r\n" + "".join(f'"{p}",{a}\r\n' for p, a in EXPECTED.items())),
        ("a.tsv", "prompt\tanswer\n" + "".join(f"{p}\t{a}\n" for p, a in EXPECTED.items())),
    ],
)
def test_every_kind_of_text_file_gives_the_same_problems(
    tmp_path: Path, name: str, text: str
) -> None:
    assert problems(write(tmp_path, name, text)) == EXPECTED


def test_parquet_gives_the_same_problems(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(SUMS), tmp_path / "a.parquet")
    assert problems(str(tmp_path / "a.parquet")) == EXPECTED


def test_a_damaged_parquet_file_is_named(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    with pytest.raises(DataError, match=r"a\.parquet can't be read as Parquet.*write it anew"):
        load_task(write(tmp_path, "a.parquet", "not parquet at all"))


def test_parquet_without_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"pyarrow.*pip install 'polyopt\[data\]'"):
        load_task(write(tmp_path, "a.parquet", "x"))


def test_a_quoted_line_break_does_not_shift_line_numbers(tmp_path: Path) -> None:
    text = 'prompt,answer\n"two\nlines",1\nplain,\n'
    with pytest.raises(
        DataError, match=r"a\.csv line 4: the answer \(column 'answer'\) is missing"
    ):
        load_task(write(tmp_path, "a.csv", text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.jsonl: no such file \(looked in "):
        load_task(str(tmp_path / "nowhere.jsonl"))


def test_an_unknown_kind_of_file_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.txt: files of kind '\.txt'.*\.jsonl, \.json, \.csv"):
        load_task(write(tmp_path, "a.txt", "x"))


GOOD = lines(SUMS[:2])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.jsonl",
            GOOD + '{"prompt": "x", \n',
            r"line 3 is not JSON .*'\{\"prompt\": \"x\",'.*one",
        ),
        (
            "a.jsonl",
            GOOD + "[1, 2]\n",
            r"line 3 is of type list, not an object: '\[1, 2\]'.*object",
        ),
        ("a.jsonl", GOOD.encode() + b"caf\xe9\n", r"line 3 is not UTF-8.*0xe9.*caf.*UTF-8"),
        ("a.jsonl", "", r"is empty.*Each record is one prompt"),
        ("a.jsonl", "\n \n", r"is empty"),
        ("a.json", "  ", r"is empty"),
        ("a.json", "[]", r"is empty"),
        ("a.json", '[\n{"prompt": 1},\n{oops}]', r"line 3 is not JSON.*'\{oops\}\]'.*list"),
        ("a.json", "3", r"holds one int, not a list of records"),
        ("a.json", '["x"]', r"record 1 is of type str, not an object: \"'x'\""),
        ("a.csv", "prompt,answer\n", r"is empty"),
        ("a.csv", "prompt,answer\na,1\nb,2,3\n", r"line 3 has 3 fields.*header has 2.*'b \| 2"),
        ("a.csv", 'prompt,answer\n"a"x,1\n', r"line 2 is garbled.*'\"a\"x,1'.*doubled"),
        ("a.csv", 'prompt,answer\na,1\n"b,2\nc,3\n', r"line 3 is garbled.*'\"b,2'"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_place_its_start_and_the_way_out(
    tmp_path: Path, name: str, text: str | bytes, message: str
) -> None:
    with pytest.raises(DataError, match=rf"(?s){name.replace('.', '[.]')} {message}"):
        load_task(write(tmp_path, name, text))


@pytest.mark.parametrize("empty", ["", "  \n ", None, []])
def test_an_empty_prompt_is_named_with_its_line(tmp_path: Path, empty: Any) -> None:
    file = write(tmp_path, "a.jsonl", lines([*SUMS[:2], {"prompt": empty, "answer": "1"}]))
    with pytest.raises(
        DataError, match=r"a\.jsonl line 3: the prompt \(column 'prompt'\) is empty.*remove the row"
    ):
        load_task(file)


@pytest.mark.parametrize(
    "missing", [{}, {"answer": None}, {"answer": " "}, {"answer": float("nan")}]
)
def test_a_missing_answer_is_named_with_its_line(tmp_path: Path, missing: dict[str, Any]) -> None:
    file = write(tmp_path, "a.jsonl", lines([*SUMS[:2], {"prompt": "x", **missing}]))
    with pytest.raises(
        DataError, match=r"a\.jsonl line 3: the answer \(column 'answer'\) is missing.*remove"
    ):
        load_task(file)


def test_zero_and_false_are_answers(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "a.jsonl",
        lines([{"prompt": "0?", "answer": 0}, {"prompt": "f", "answer": False}]),
    )
    assert problems(file) == {"0?": 0, "f": False}


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [("question", "target"), ("Problem", "Solution"), ("instruction", "output")],
)
def test_columns_with_usual_names_are_found(tmp_path: Path, prompt: str, answer: str) -> None:
    records = [{prompt: r["prompt"], answer: r["answer"], "level": 3} for r in SUMS]
    file = write(tmp_path, "a.jsonl", lines(records))
    assert problems(file) == EXPECTED
    assert load_task(file).train[0].metadata == {"level": 3}


def test_named_columns_are_used(tmp_path: Path) -> None:
    records = [{"prompt": "no", "q": r["prompt"], "gold": r["answer"]} for r in SUMS]
    file = write(tmp_path, "a.jsonl", lines(records))
    assert problems(file, prompt_column="q", answer_column="gold") == EXPECTED


def test_a_named_column_that_is_not_there_lists_those_that_are(tmp_path: Path) -> None:
    file = write(tmp_path, "a.jsonl", lines([{"questions": "x", "answer": "1"}] * 2))
    with pytest.raises(
        DataError,
        match=r"no column 'question' \(--prompt-column\); it has 'questions', 'answer': did you",
    ):
        load_task(file, prompt_column="question")
    with pytest.raises(DataError, match=r"no column 'gold' \(--answer-column\); it has 'answer'"):
        load_task(file, prompt_column="questions", answer_column="gold")


def test_no_column_that_looks_like_a_prompt_lists_those_there_are(tmp_path: Path) -> None:
    file = write(tmp_path, "a.jsonl", lines([{"body": "x", "answer": "1"}] * 2))
    with pytest.raises(DataError, match=r"it has 'body', 'answer'. Name it with --prompt-column"):
        load_task(file)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (
            {"prompt": "x", "question": "y", "answer": "1"},
            r"'prompt', 'question' could each be the",
        ),
        (
            {"prompt": "x", "solution": "y", "answer": "1"},
            r"'solution', 'answer' could each be the",
        ),
    ],
)
def test_two_columns_that_could_be_it_are_an_error_naming_both(
    tmp_path: Path, record: dict[str, str], message: str
) -> None:
    with pytest.raises(DataError, match=rf"{message} .*Say which with --\w+-column"):
        load_task(write(tmp_path, "a.jsonl", lines([record] * 2)))


def test_a_chat_is_taken_as_it_is(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}]
    records = [{"prompt": chat, "answer": "2"}, SUMS[5]]
    task = load_task(write(tmp_path, "a.jsonl", lines(records)), heldout_size=0)
    assert task.train[0].messages == tuple(chat)
    assert task.train[1].messages == ({"role": "user", "content": SUMS[5]["prompt"]},)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (
            [{"role": "user"}],
            r"message 0 of the prompt .*\{'role': 'user'\}.*\"content\": \"text\"",
        ),
        ([{"role": "usr", "content": "x"}], r"message 0 .*'usr'.*a role of assistant"),
        (["x"], r"message 0 of the prompt .*is 'x'"),
        (17, r"the prompt \(column 'prompt'\) is 17, not text or a list"),
        (
            [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}],
            r"ends with an assistant message.*Remove it",
        ),
    ],
)
def test_a_malformed_chat_is_named_with_its_line(tmp_path: Path, prompt: Any, message: str) -> None:
    file = write(tmp_path, "a.jsonl", lines([SUMS[0], {"prompt": prompt, "answer": "1"}]))
    with pytest.raises(DataError, match=rf"a\.jsonl line 2: .*{message}"):
        load_task(file)
