"""Which rollouts a report holds, and how they are written."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polyopt.report import rollout_sample
from polyopt.report.rollout_sample import (
    count_lines,
    encode_rollout,
    evenly,
    page_json,
    sample_groups,
    sample_pairs,
)

MakeRun = Callable[..., Path]


def a_rollout(n: int = 6, **change: Any) -> dict[str, Any]:
    row = {
        "rollout": 2,
        "reward": 1.0,
        "accuracy": True,
        "finish": "stop",
        "terms": {"exact": 1},
        "completion": "abcdef",
        "tokens": [f"t{i}" for i in range(n)],
        "mask": [1] * n,
        "advantages": [float(i) for i in range(n)],
        "logp": [-0.123456] * n,
    }
    return row | change


def write_group(path: Path, rewards: list[float], group: int = 0, **change: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        for i, reward in enumerate(rewards):
            row = a_rollout(rollout=i, reward=reward, group=group, prompt="p", **change)
            file.write(json.dumps(row) + "\n")


@pytest.mark.parametrize("n", [0, 1, 2, 3, 17, 64])
def test_evenly_takes_each_once(n: int) -> None:
    assert sorted(evenly(n)) == list(range(n))


def test_every_beginning_of_evenly_is_spread_out() -> None:
    assert evenly(9)[:5] == [0, 8, 4, 2, 6]


def test_a_small_run_is_shown_whole(run: Path) -> None:
    sample = sample_groups(run / "rollouts", 5_000_000)
    assert sample.shown == sample.logged == 13 * 3 * 8
    assert [e["step"] for e in sample.index] == sorted(e["step"] for e in sample.index)
    assert sample.steps == 13


def test_a_sample_reaches_from_the_first_step_to_the_last(
    make_run: MakeRun, tmp_path: Path
) -> None:
    run = make_run(tmp_path, steps=300, every=3)
    sample = sample_groups(run / "rollouts", 400_000)
    steps = sorted({entry["step"] for entry in sample.index})
    assert (steps[0], steps[-1]) == (1, 300)
    assert max(b - a for a, b in itertools.pairwise(steps)) <= 40
    assert sum(map(len, sample.texts)) <= 440_000
    assert sample.shown == sum(len(json.loads(t)["rollouts"]) for t in sample.texts)


def test_groups_that_disagree_come_first(tmp_path: Path) -> None:
    write_group(tmp_path / "step-000001.jsonl", [1.0, 1.0], group=0)
    write_group(tmp_path / "step-000001.jsonl", [0.0, 1.0], group=1)
    sample = sample_groups(tmp_path, 100)
    assert [entry["group"] for entry in sample.index] == ["1"]
    assert sample.logged == 4


def test_a_huge_group_is_cut_and_says_so(tmp_path: Path) -> None:
    write_group(
        tmp_path / "step-000001.jsonl",
        [0.0, 1.0] * 40,
        tokens=["word"] * 4000,
        mask=[1] * 4000,
        advantages=[i / 7 for i in range(4000)],
        logp=[-i / 7 for i in range(4000)],
    )
    sample = sample_groups(tmp_path, 10_000_000)
    group = json.loads(sample.texts[0])
    assert len(sample.texts[0]) <= rollout_sample.GROUP_BYTES
    assert group["logged"] == 80
    assert len(group["rollouts"]) == 32
    first = group["rollouts"][0]
    head, missing = first["cut"]
    assert len(first["tokens"]) + missing == first["length"] == 4000
    assert first["advantages"][head] == pytest.approx((head + missing) / 7, rel=0.01)


def test_a_column_with_one_value_is_written_once() -> None:
    encoded = encode_rollout(a_rollout(advantages=[0.5] * 6), 100)
    assert encoded["advantages"] == 0.5
    assert encoded["mask"] == 1
    assert encoded["logp"] == -0.123
    assert encoded["accuracy"] == 1.0


def test_a_column_of_another_length_than_the_tokens_is_left_out() -> None:
    encoded = encode_rollout(a_rollout(logp=[-1.0], entropy=None), 100)
    assert "logp" not in encoded
    assert "entropy" not in encoded
    assert encoded["advantages"] == [0, 1, 2, 3, 4, 5]


def test_without_tokens_the_text_is_shown() -> None:
    assert encode_rollout(a_rollout(tokens=None), 100)["completion"] == "abcdef"
    long = encode_rollout(a_rollout(tokens=[], completion="x" * 1000), 100)
    assert [len(part) for part in long["completion"]] == [560, 240]
    assert long["completion_cut"] == 200


def test_before_and_after_meet_by_prompt(run: Path) -> None:
    after = run / "rollouts" / "after.jsonl"
    after.write_text("".join(reversed(after.read_text().splitlines(keepends=True)[:10])))
    sample = sample_pairs(run / "rollouts", 1_000_000)
    pairs = [json.loads(text) for text in sample.texts]
    assert (sample.shown, sample.logged) == (26, 26)
    assert [entry["prompt_id"] for entry in sample.index] == [f"held-{i}" for i in range(16)]
    assert [len(pair["after"]) for pair in pairs] == [1] * 10 + [0] * 6
    assert pairs[3]["prompt"] == "What is 33 + 52?"


def test_pairs_beyond_the_budget_are_counted(run: Path) -> None:
    sample = sample_pairs(run / "rollouts", 1500)
    assert 0 < sample.shown < sample.logged == 32


def test_lines_are_counted_with_or_without_a_last_line_feed(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    for text, lines in (("", 0), ("a\nb\n", 2), ("a\nb", 2)):
        path.write_text(text)
        assert count_lines(path) == lines


def test_page_json_holds_nothing_that_ends_a_script() -> None:
    text = page_json({"a": "</script><!--&\u2028\ud83d"})
    assert not set("<>&\u2028\ud83d") & set(text)
    assert json.loads(text) == {"a": "</script><!--&\u2028\ud83d"}
