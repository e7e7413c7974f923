"""Built-in verifiers: what counts as right."""

from __future__ import annotations

import threading

import pytest

from polyopt.batch import Prompt
from polyopt.rewards.answers import boxed, marked_answer, tagged, visible
from polyopt.rewards.mathematics import math_match
from polyopt.rewards.verifiers import (
    AgainstAnswer,
    IsJsonObject,
    MatchesPattern,
    choice_match,
    exact_match,
    number_match,
    think_then_answer,
)


def test_the_last_answer_tag_is_the_answer() -> None:
    assert tagged("<answer>1</answer> no, <answer> 2 </answer>") == "2"
    assert tagged("no tags") is None


def test_boxes_are_matched_by_their_braces() -> None:
    assert boxed(r"first \boxed{1}, then \boxed{\frac{1}{2}} done") == r"\frac{1}{2}"
    assert boxed(r"\boxed{never closed") is None


def test_a_box_inside_an_answer_tag_is_unpacked() -> None:
    assert marked_answer(r"<answer>\boxed{7}</answer>") == "7"


def test_an_unfinished_thought_shows_nothing() -> None:
    assert visible("<think> is it 42?") == ""
    assert visible("<think>is it 42?</think> no, 43") == "no, 43"
    assert visible("it was 41</think> no, 43") == "no, 43"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Paris", "paris"),
        ("I think so.\nThe answer is **Paris**.", "Paris"),
        ("<answer>Paris</answer> trailing words", "Paris"),
        (r"so \boxed{x + 1}", "x +  1"),
        ("72", "48 / 2 = 24, and so on\n#### 72"),
        ("two\nlines", "two\nlines"),
        ("colour", ["color", "colour"]),
        ("7", 7),
    ],
)
def test_exact_accepts_the_same_answer_dressed_differently(text: str, answer: object) -> None:
    assert exact_match(text, answer) == 1.0


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Paris, or London", "Paris"),
        ("<answer>London</answer> Paris", "Paris"),
        ("<think>Paris", "Paris"),
        ("", "Paris"),
        ("7.0", "7"),
    ],
)
def test_exact_refuses_anything_else(text: str, answer: str) -> None:
    assert exact_match(text, answer) == 0.0


@pytest.mark.parametrize(
    ("text", "answer", "reward"),
    [
        ("so 3 and 1,000.0", "1000", 1.0),
        ("5-3", "3", 1.0),
        ("5 is -3", "-3", 1.0),
        ("it is \u22123.", "-3", 1.0),
        ("1e3", 1000, 1.0),
        (".5", 0.5, 1.0),
        ("42, not 41", "42", 0.0),
        (r"\boxed{42}, not 41", "42", 1.0),
        ("none", "42", 0.0),
        ("0.30000000000000004", "0.3", 0.0),
        ("1,2,3", "3", 1.0),
        ("42", "forty-two", None),
        ("so 18", "9 + 9\n#### 18", 1.0),
    ],
)
def test_number_compares_the_last_number_by_value(
    text: str, answer: object, reward: float | None
) -> None:
    assert number_match(text, answer) == reward


@pytest.mark.parametrize(
    ("text", "answer", "reward"),
    [
        ("B", "B", 1.0),
        ("b", "(B)", 1.0),
        ("B) Paris", "B. Paris", 1.0),
        ("A long walk. The answer is (C).", "C", 1.0),
        ("First (A), but then (D)", "D", 1.0),
        ("Thinking it over:\nD", "D", 1.0),
        ("<answer>C</answer>", "C", 1.0),
        ("A dog barked", "A", 0.0),
        ("The answer is A", "B", 0.0),
        ("B", 1, None),
    ],
)
def test_choice_reads_a_letter_only_where_one_is_chosen(
    text: str, answer: object, reward: float | None
) -> None:
    assert choice_match(text, answer) == reward


def test_regex_searches_the_whole_completion() -> None:
    assert MatchesPattern(r"\d+ apples")("I see 12 apples.") == 1.0
    assert MatchesPattern(r"^\d+$")("12 apples") == 0.0


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ('{"name": "Ann", "age": 3}', 1.0),
        ('```json\n{"name": "Ann", "age": 3}\n```', 1.0),
        ('<think>{</think><answer>{"name": 1, "age": 2}</answer>', 1.0),
        ('{"name": "Ann"}', 0.0),
        ('Here it is: {"name": "Ann", "age": 3}', 0.0),
        ('["name", "age"]', 0.0),
        ('{"name": NaN, "age": 3}', 0.0),
        ("[" * 100_000, 0.0),
        ("", 0.0),
    ],
)
def test_json_wants_an_object_with_the_required_keys(text: str, reward: float) -> None:
    assert IsJsonObject(("name", "age"))(text) == reward


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("<think>hm</think>\n<answer>7</answer>", 1.0),
        ("hm</think><answer>7</answer>\n", 1.0),
        ("<think>hm</think> well, <answer>7</answer>", 0.0),
        ("<think>hm</think><answer>7</answer> done", 0.0),
        ("<think> </think><answer>7</answer>", 0.0),
        ("<think>a</think><answer>7</answer><answer>8</answer>", 0.0),
        ("<answer>7</answer>", 0.0),
    ],
)
def test_format_wants_one_thought_then_one_answer(text: str, reward: float) -> None:
    assert think_then_answer(text) == reward


def test_a_prompt_without_an_answer_is_unscored() -> None:
    prompts = [Prompt("a", "?", "7"), Prompt("b", "?")]
    assert AgainstAnswer(exact_match)(prompts, ["7", "7"]) == [1.0, None]


@pytest.mark.parametrize(
    ("text", "answer", "reward"),
    [
        ("it is 0.5", r"\frac{1}{2}", 1.0),
        (r"\boxed{1 + x^2}", "x^2 + 1", 1.0),
        (r"<answer>\frac12</answer> or 7", "1/2", 1.0),
        ("72", "#### 72", 1.0),
        (r"\boxed{3}", "4", 0.0),
        ("\ud800\x00 $$\\frac{{{$ \\boxed{", "4", 0.0),
        ("", "4", 0.0),
        ("4", "???", None),
    ],
)
def test_math_compares_values_and_survives_garbage(
    text: str, answer: str, reward: float | None
) -> None:
    assert math_match(text, answer) == reward


def test_math_works_off_the_main_thread() -> None:
    found: list[float | None] = []
    thread = threading.Thread(target=lambda: found.append(math_match("0.5", "1/2")))
    thread.start()
    thread.join()
    assert found == [1.0]
