"""What a finding says to do next can be done."""

from __future__ import annotations

import argparse
import re
from typing import Any

import pytest

from polyopt.command_line import build_parser
from polyopt.diagnosis import Evidence, Finding, Symptom, all_signs
from polyopt.diagnosis.flags import LOWER_RATE, MORE_PENALTY, flag_text
from polyopt.diagnosis.next_run import next_run
from polyopt.ideas import build
from polyopt.pipeline import describe

EXPRESSIONS = ("grpo", "dapo", "dr-grpo+ktae", "gspo", "rloo", "ppo", "reinforce++")


def of(expression: str, **overrides: Any) -> Evidence:
    """The record of a run of which only `run.json` is known."""
    recipe = build(expression, overrides.get("overrides"))
    return Evidence([], about={"expression": expression, "pipeline": describe(recipe)})


def finding(name: str, run: Evidence) -> Finding:
    """What a sign would find."""
    sign = next(s for s in all_signs() if s.name == name)
    flags = tuple(flag_text(flag, run) for flag in sign.flags)
    return Finding(name, sign.harm, Symptom("", 1.0), sign.ideas, sign.remedy, flags)


def test_every_sign_names_a_flag_of_polyopt_train() -> None:
    for sign in all_signs():
        assert sign.flags, sign.name
        for flag in sign.flags:
            line = ["train", "grpo", *flag_text(flag).split(" ", 1)]
            assert build_parser().parse_args(line).command == "train", flag


def test_flags_in_remedies_exist() -> None:
    (commands,) = [a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction)]
    for sign in all_signs():
        for option in re.findall(r"--[a-z-]+", sign.remedy):
            assert option in commands.choices["train"]._option_string_actions, (sign.name, option)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_the_command_of_every_sign_builds_and_changes_the_run(expression: str) -> None:
    run = of(expression)
    before = [(r["slot"], r["part"], r["numbers"]) for r in describe(build(expression))]
    for sign in all_signs():
        command = next_run(run, finding(sign.name, run))
        if sign.name == "length-biased-loss" and not command:
            continue  # an expression that claims its aggregation has none other to try
        assert command.startswith(f"polyopt train {expression}"), sign.name
        words = command.removesuffix(" ...").split()
        settings = dict(word.split("=") for word in words if word.startswith(("objective", "upd")))
        recipe = build(words[2], settings)
        same = [(r["slot"], r["part"], r["numbers"]) for r in describe(recipe)] == before
        assert not same or (len(words) > 3 and words[3] != "--set"), command


def test_flags_start_from_the_runs_own_numbers() -> None:
    run = of("grpo", overrides={"updates.optimizer.lr": 3e-5})
    assert LOWER_RATE.text(run) == "--lr 1e-05"
    assert MORE_PENALTY.text(run) == "--set objective.kl.coefficient=0.12"
    assert LOWER_RATE.text(Evidence([])) == "--lr 3e-07"


def test_an_idea_that_the_run_has_already_is_not_proposed() -> None:
    run = of("dapo")
    assert "clip-higher" not in next_run(run, finding("entropy-collapse", run))
    run = of("grpo")
    assert "grpo+clip-higher" in next_run(run, finding("entropy-collapse", run))


def test_a_value_that_the_recipe_lacks_is_not_set() -> None:
    run = of("dr-grpo")
    assert "kl.coefficient" not in next_run(
        run,
        Finding("x", 1, Symptom("", 1.0), (), "", ("--set objective.kl.coefficient=1", "--lr 1")),
    )


def test_nobodys_code_is_run_for_a_command() -> None:
    about = {"expression": "grpo+missing.py:idea"}
    assert next_run(Evidence([], about=about), finding("truncation-bias", Evidence([]))) == ""
    assert next_run(Evidence([]), finding("truncation-bias", Evidence([]))) == ""
