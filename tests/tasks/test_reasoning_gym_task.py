"""Generated tasks: disjoint splits, options, and the verifier."""

from __future__ import annotations

import logging
import pickle
import sys
from typing import Any

import pytest

from polyopt.errors import DataError, UserError
from polyopt.rewards.judge import Judge
from polyopt.rewards.scoring import score
from polyopt.tasks import reasoning_gym
from polyopt.tasks.load import load_task
from polyopt.tasks.reasoning_gym import Problems, Source
from polyopt.tasks.splits import problem_key
from polyopt.tasks.task import Task

SMALL = "reasoning_gym:chain_sum?min_terms=2&max_terms=2&min_digits=1&max_digits=1"
"""One digit plus or minus one digit: 200 different problems."""


def accuracy(task: Task, texts: list[str], index: int = 0) -> list[float]:
    prompts = [task.train[index]] * len(texts)
    return score(task.rewards, prompts, texts).total.tolist()


def test_sizes_are_two_thousand_and_two_hundred_unless_chosen() -> None:
    task = load_task("reasoning_gym:chain_sum")
    assert (len(task.train), len(task.heldout)) == (2000, 200)
    task = load_task("reasoning_gym:chain_sum?size=30", heldout_size=5)
    assert (len(task.train), len(task.heldout)) == (30, 5)


def test_no_problem_is_in_both_sets_even_where_there_are_few(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        task = load_task(SMALL)
    train = {prompt.text for prompt in task.train}
    heldout = [prompt.text for prompt in task.heldout]
    assert not train & set(heldout)
    assert len(heldout) == len(set(heldout)) > 50
    assert len(train) > 50
    assert f"{len(heldout)} are held out instead of 200" in caplog.text


def test_train_and_heldout_do_not_overlap_as_neighbouring_seeds_would() -> None:
    task = load_task("reasoning_gym:chain_sum?min_digits=4&max_digits=6&size=300", heldout_size=300)
    assert not {p.text for p in task.train} & {p.text for p in task.heldout}
    assert len({p.text for p in task.train}) == 300


class OneProblem(Source):
    """A source that only ever draws one problem."""

    def entry(self, split: str, draw: int, index: int, size: int) -> dict[str, Any]:
        return {"question": "1 + 1?", "answer": "2", "metadata": {}}


def test_a_task_without_room_to_train_says_so() -> None:
    source = OneProblem("reasoning_gym:tiny", "tiny", {}, 0)
    assert Problems(source, 3, frozenset())[2].text == "1 + 1?"
    with pytest.raises(DataError, match=r"gym:tiny' has too few different.*lower --heldout-size"):
        Problems(source, 3, frozenset({problem_key("1 + 1?")}))


def test_problems_are_a_sequence_and_the_same_whenever_they_are_asked_for() -> None:
    first, second = (load_task("reasoning_gym:chain_sum?size=20", seed=3) for _ in range(2))
    assert first.train[7] == second.train[7]
    assert list(first.train) == list(second.train)
    assert first.train[-1] == first.train[19]
    assert list(first.train[2:4]) == [first.train[2], first.train[3]]
    with pytest.raises(IndexError):
        first.train[20]


def test_another_seed_gives_other_problems_and_the_option_seed_fixes_them() -> None:
    def some(spec: str, seed: int) -> list[str]:
        return [prompt.text for prompt in load_task(spec, seed=seed).train]

    assert some("reasoning_gym:chain_sum?size=9", 0) != some("reasoning_gym:chain_sum?size=9", 1)
    fixed = "reasoning_gym:chain_sum?size=9&seed=0"
    assert some(fixed, 5) == some(fixed, 6) == some("reasoning_gym:chain_sum?size=9", 0)


def test_options_are_read_as_their_types_from_the_spec_or_beside_it() -> None:
    task = load_task(
        "reasoning_gym:basic_arithmetic?operators=+,-&allow_parentheses=false",
        options={"size": "5", "min_terms": "3", "max_terms": 3},
    )
    assert all(prompt.metadata["num_terms"] == 3 for prompt in task.train)
    assert not any(symbol in prompt.text for prompt in task.train for symbol in "*/()")
    assert task.name == (
        "reasoning_gym:basic_arithmetic?allow_parentheses=false&max_terms=3&min_terms=3"
        "&operators=+,-&size=5"
    )


def test_an_answer_counts_in_a_tag_in_plain_text_and_on_the_last_line() -> None:
    task = load_task("reasoning_gym:chain_sum?size=3", heldout_size=0)
    right = task.train[0].answer
    texts = [right, f"so <answer>{right}</answer> ok", f"<think>x</think>{right}", f"so\n{right}"]
    assert accuracy(task, texts) == [1.0] * 4
    wrong = ["", "<answer>none</answer> " + right, f"<think>{right}", "no idea"]
    assert accuracy(task, wrong) == [0.0] * 4
    assert 0 < accuracy(task, [f"It is {right}, I think."])[0] < 1


def test_the_verifier_sees_the_metadata_of_its_problem() -> None:
    task = load_task("reasoning_gym:countdown?size=2", heldout_size=0)
    prompt = task.train[0]
    assert accuracy(task, [prompt.metadata["expression"], "1 + 1"])[0] == 1.0
    other = task.train[1].metadata["expression"]
    assert accuracy(task, [other])[0] < 1


def test_an_answer_that_would_hang_the_verifier_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    judges: dict[bytes, Judge] = {}

    def hasty(file: object, function: str, setup: bytes) -> Judge:
        made = Judge(reasoning_gym._FILE, function, pickle.loads(setup), seconds=0.5)
        return judges.setdefault(setup, made)

    monkeypatch.setattr(reasoning_gym, "shared_judge", hasty)
    task = load_task("reasoning_gym:countdown?size=2", heldout_size=0)
    assert accuracy(task, ["9**9**9**9", task.train[0].answer]) == [0.0, 1.0]
    for judge in judges.values():
        judge.close()


def test_accuracy_can_be_weighted_and_joined_by_other_rewards() -> None:
    task = load_task("reasoning_gym:chain_sum", rewards=["2*accuracy", "0.1*format"])
    assert [(t.name, t.weight) for t in task.rewards] == [("accuracy", 2), ("format", 0.1)]
    assert task.accuracy_term is task.rewards[0]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("reasoning_gym:chainsum", r"no data set 'chainsum': did you mean chain_sum"),
        ("reasoning_gym:chain_sum?min_term=2", r"no option 'min_term': did you mean min_terms"),
        (
            "reasoning_gym:chain_sum?min_terms=two",
            r"min_terms='two' is not a whole number.*Options",
        ),
        ("reasoning_gym:chain_sum?allow_negation=2", r"allow_negation='2' is not true or false"),
        ("reasoning_gym:chain_sum?size", r"'size' is not OPTION=VALUE"),
        ("reasoning_gym:chain_sum?size=0", r"size=0.*at least 1"),
        ("reasoning_gym:chain_sum?min_terms=9", r"refuses these options \(min_terms=9.*must be >="),
        ("reasoning_gym:basic_arithmetic?format_style=x", r"is not one of simple, natural"),
    ],
)
def test_what_the_generator_cannot_use_is_named_with_the_way_out(spec: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_task(spec)


def test_an_option_given_twice_differently_is_refused() -> None:
    with pytest.raises(DataError, match=r"'size' is '5' in the spec and '6' in --task-option"):
        load_task("reasoning_gym:chain_sum?size=5", options={"size": "6"})


def test_columns_and_files_mean_nothing_for_generated_problems() -> None:
    with pytest.raises(DataError, match=r"is generated: --heldout \(x\.jsonl\).*Leave it out"):
        load_task("reasoning_gym:chain_sum", heldout="x.jsonl")


def test_without_the_package_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(UserError, match=r"reasoning-gym.*pip install 'polyopt\[tasks\]'"):
        load_task("reasoning_gym:chain_sum")
