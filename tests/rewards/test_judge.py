"""Verifiers in a process of their own: hangs, crashes and start-up failures."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from polyopt.errors import UserError
from polyopt.rewards.judge import GaveUp, Judge

VERIFIER = """
import os, time

def make(offset=0):
    def judge(command, value):
        print("chatter on standard output")
        if command == "hang":
            time.sleep(60)
        if command == "stuck in C":
            return 9 ** 9 ** 9 > 0
        if command == "die":
            os._exit(1)
        return value + offset
    return judge

def broken():
    raise ImportError("no package xyz")
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "verifier.py"
    path.write_text(VERIFIER)
    return path


def test_a_judge_answers_although_the_verifier_prints(file: Path) -> None:
    judge = Judge(file, "make", (10,))
    assert [judge("add", 1), judge("add", 2)] == [11, 12]
    judge.close()


@pytest.mark.parametrize("command", ["hang", "stuck in C"])
def test_a_question_that_hangs_is_given_up_and_the_next_one_is_answered(
    file: Path, command: str, caplog: pytest.LogCaptureFixture
) -> None:
    judge = Judge(file, "make", seconds=0.3)
    started = time.monotonic()
    with caplog.at_level(logging.WARNING), pytest.raises(GaveUp):
        judge(command, 1)
    assert time.monotonic() - started < 10
    assert "verifier.py gave up" in caplog.text
    assert judge("add", 1) == 1
    judge.close()


def test_a_verifier_that_dies_costs_one_question(file: Path) -> None:
    judge = Judge(file, "make")
    with pytest.raises(GaveUp):
        judge("die", 1)
    assert judge("add", 5) == 5
    judge.close()


def test_a_process_killed_between_questions_costs_nothing(file: Path) -> None:
    judge = Judge(file, "make")
    assert judge("add", 1) == 1
    assert judge._process is not None
    judge._process.kill()
    judge._process.wait()
    assert judge("add", 2) == 2
    judge.close()


def test_a_verifier_that_cannot_start_is_a_user_error_with_the_reason(file: Path) -> None:
    with pytest.raises(UserError, match=r"verifier\.py.*no package xyz.*pip install"):
        Judge(file, "broken")("add", 1)
