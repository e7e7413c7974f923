"""Rewards as they are written on the command line, and users' own functions."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from polyopt.batch import Prompt
from polyopt.errors import DataError, UserError
from polyopt.rewards.protocol import RewardTerm
from polyopt.rewards.specs import BUILTIN, needs_answer, parse_reward, parse_rewards

PROMPTS = [Prompt("a", "1 + 1", "2", {"hint": "x"}), Prompt("b", "2 + 2", "4", {"hint": "yy"})]


def write(folder: Path, source: str) -> Path:
    path = folder / "mine.py"
    path.write_text(source)
    return path


def rewards_of(term: RewardTerm, texts: list[str]) -> list[float]:
    return list(term.function(PROMPTS, texts))


def test_a_weight_stands_before_a_star() -> None:
    term = parse_reward("0.2*format")
    assert (term.name, term.weight, term.correctness) == ("format", 0.2, False)
    assert parse_reward("-1 * exact").weight == -1
    assert parse_reward("exact").weight == 1


def test_stars_and_colons_inside_a_pattern_belong_to_it() -> None:
    term = parse_reward(r"0.5*regex:a*b: \d")
    assert (term.name, term.weight) == (r"regex:a*b: \d", 0.5)
    assert rewards_of(term, ["aab: 7", "c"]) == [1, 0]
    assert rewards_of(parse_reward("regex:my.py:f"), ["in my.py:f", "no"]) == [1, 0]


def test_json_takes_keys_or_none() -> None:
    assert rewards_of(parse_reward("json:a, b"), ['{"a": 1, "b": 2}', '{"a": 1}']) == [1, 0]
    assert rewards_of(parse_reward("json"), ["{}", "x"]) == [1, 0]


@pytest.mark.parametrize("name", ["exact", "number", "math", "choice"])
def test_verifiers_of_answers_say_that_they_need_one_and_mean_right(name: str) -> None:
    term = parse_reward(name)
    assert needs_answer(term)
    assert term.correctness


def test_every_builtin_can_be_made() -> None:
    for name, builtin in BUILTIN.items():
        spec = f"{name}:x" if builtin.required else name
        assert len(rewards_of(parse_reward(spec), ["", "x"])) == 2


def test_an_unknown_name_lists_the_nearest_and_how_to_give_a_function() -> None:
    with pytest.raises(DataError, match=r"'exat'.*did you mean exact.*file\.py:function"):
        parse_reward("exat")


@pytest.mark.parametrize("spec", ["x*exact", "nan*exact", "inf*exact"])
def test_a_bad_weight_is_named(spec: str) -> None:
    with pytest.raises(DataError, match=r"is not a weight.*0\.2\*format"):
        parse_reward(spec)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("regex:(", r"'regex:\('.*not a regular expression.*unterminated.*backslash"),
        ("regex", r"'regex' needs PATTERN.*regex:PATTERN"),
        ("exact:x", r"'exact:x'.*takes nothing after it"),
    ],
)
def test_a_bad_argument_is_named_with_the_way_out(spec: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse_reward(spec)


def test_math_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(UserError, match=r"math-verify.*pip install 'polyopt\[tasks\]'"):
        parse_reward("math")


def test_a_function_is_called_per_completion_if_its_names_are_singular(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "def mine(completion, answer, prompt, metadata, scale=2):\n"
        "    return scale * (completion == answer) + len(metadata['hint']) + len(prompt.id)\n",
    )
    term = parse_reward(f"0.5*{file}:mine")
    assert (term.name, term.weight, needs_answer(term)) == ("mine", 0.5, True)
    assert rewards_of(term, ["2", "5"]) == [4, 3]


def test_a_function_is_called_once_if_its_names_are_plural(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "def mine(prompts, completions, answers, metadata):\n"
        "    assert [p.id for p in prompts] == ['a', 'b'] and metadata[1]['hint'] == 'yy'\n"
        "    return [c == a for c, a in zip(completions, answers)]\n"
        "mine.correctness = True\n",
    )
    term = parse_reward(f"{file}:mine")
    assert term.correctness
    assert rewards_of(term, ["2", "5"]) == [True, False]


def test_a_function_with_keywords_is_given_everything(tmp_path: Path) -> None:
    file = write(tmp_path, "def mine(completions, **more):\n    return [sorted(more)] * 2\n")
    expected = ["answers", "metadata", "prompts"]
    assert parse_reward(f"{file}:mine").function(PROMPTS, ["", ""]) == [expected, expected]


def test_a_function_that_ignores_answers_does_not_need_them(tmp_path: Path) -> None:
    file = write(tmp_path, "def mine(completion):\n    return 1\n")
    assert not needs_answer(parse_reward(f"{file}:mine"))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def mine(completion, answers): ...", r"'answers' is a list.*singular names"),
        ("def mine(completions, answer): ...", r"'answer' is one value.*plural ones"),
        ("def mine(text): ...", r"'text' is none of the names.*def NAME\(completion, answer\)"),
        ("def mine(answer): ...", r"none of which is the completion"),
        ("async def mine(completion): ...", r"async.*plain `def`"),
        ("mine = 3", r"is of type int, not a function"),
    ],
)
def test_a_wrong_signature_is_refused_when_it_is_loaded(
    tmp_path: Path, source: str, message: str
) -> None:
    with pytest.raises(DataError, match=rf"mine\.py:mine .*{message}"):
        parse_reward(f"{write(tmp_path, source)}:mine")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no Python file .*nowhere\.py.*check the path"):
        parse_reward(f"{tmp_path}/nowhere.py:f")


def test_a_file_that_fails_shows_its_line(tmp_path: Path) -> None:
    file = write(tmp_path, "x = 1\ny = x / 0\n")
    with pytest.raises(DataError, match=r"mine\.py line 2: ZeroDivisionError: division by zero"):
        parse_reward(f"{file}:f")
    file = write(tmp_path, "x = 1\n\ndef f(:\n")
    with pytest.raises(DataError, match=r"mine\.py line 3: SyntaxError"):
        parse_reward(f"{file}:f")


def test_a_missing_function_names_those_there_are_without_imports(tmp_path: Path) -> None:
    file = write(tmp_path, "import os\nfrom pathlib import Path\ndef brief(completion): ...\n")
    with pytest.raises(DataError, match=r"has no 'brif': did you mean brief\?"):
        parse_reward(f"{file}:brif")
    with pytest.raises(DataError, match=r"which object\? Write .*names there: brief\."):
        parse_reward(str(file))


def test_a_ready_term_in_a_file_keeps_its_own_weight(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "from polyopt.rewards.protocol import RewardTerm\n"
        "term = RewardTerm('tidy', lambda p, c: [1.0] * len(c), 0.5)\n",
    )
    assert (parse_reward(f"3*{file}:term").name, parse_reward(f"3*{file}:term").weight) == (
        "tidy",
        1.5,
    )


def test_a_task_own_verifier_is_called_by_its_name() -> None:
    own = RewardTerm("accuracy", lambda p, c: [1.0] * len(c), correctness=True)
    term = parse_reward("2*accuracy", [own])
    assert (term.function, term.weight, term.correctness) == (own.function, 2, True)


def test_accuracy_stays_logged_when_other_rewards_replace_it() -> None:
    own = RewardTerm("accuracy", lambda p, c: [1.0] * len(c), correctness=True)
    terms = parse_rewards(["format"], [own])
    assert [(t.name, t.weight) for t in terms] == [("format", 1), ("accuracy", 0)]
    assert [t.name for t in parse_rewards(["exact"], [own])] == ["exact"]


def test_a_reward_given_twice_or_without_any_weight_is_refused() -> None:
    with pytest.raises(DataError, match=r"'format' is given 2 times.*2\*format"):
        parse_rewards(["format", "0.5*format"])
    with pytest.raises(DataError, match="every reward has weight 0"):
        parse_rewards(["0*format"])
