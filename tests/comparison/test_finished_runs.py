"""`polyopt compare --runs`: what finished run folders say against each other."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from polyopt.cli import main
from polyopt.comparison.compare import compare_runs
from polyopt.comparison.scores import read_scores
from polyopt.comparison.summary import advice, summarize
from polyopt.errors import UserError
from tests.comparison.runs import write_run

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


def runs_of(folder: Path, **finals: list[float]) -> list[Path]:
    return [
        write_run(folder / f"{name}-{seed}", name, seed, final)
        for name, values in finals.items()
        for seed, final in enumerate(values)
    ]


def test_runs_are_grouped_by_expression_and_costed(tmp_path: Path) -> None:
    summary = summarize(read_scores(runs_of(tmp_path, grpo=[0.1, 0.2, 0.6], dapo=[0.5, 0.6, 0.7])))
    grpo, dapo = summary.standings
    assert (grpo.name, grpo.runs, grpo.tokens, grpo.seconds) == ("grpo", 3, 300.0, 1.5)
    assert grpo.final is not None
    assert dapo.final is not None
    assert (grpo.final.value, dapo.final.value) == pytest.approx((0.3, 0.6))
    assert grpo.area is not None
    assert grpo.area.value == pytest.approx(0.5)
    (pair,) = summary.pairs
    assert pair.improvement.value == pytest.approx((3 + 3 + 1.5) / 9)


def test_the_verdict_names_the_better_or_the_seeds_still_needed(tmp_path: Path) -> None:
    finals = {"grpo": [0.10, 0.12, 0.11, 0.13, 0.12], "dapo": [0.50, 0.55, 0.53, 0.51, 0.56]}
    clear = summarize(read_scores(runs_of(tmp_path / "clear", **finals)))
    assert advice(clear.pairs[0]) == "dapo is better"
    finals = {"grpo": [0.50, 0.40, 0.45, 0.55, 0.47], "dapo": [0.55, 0.38, 0.50, 0.52, 0.51]}
    close = summarize(read_scores(runs_of(tmp_path / "close", **finals)))
    more = close.pairs[0].difference.more_seeds
    assert more is not None
    assert advice(close.pairs[0]) == f"overlap: about {more} more seeds each would separate them"
    same = summarize(read_scores(runs_of(tmp_path / "same", grpo=[0.5] * 3, dapo=[0.5] * 3)))
    assert advice(same.pairs[0]).startswith("overlap: no difference seen")
    lone = summarize(read_scores(runs_of(tmp_path / "lone", grpo=[0.5], dapo=[0.9])))
    assert advice(lone.pairs[0]) == "one seed shows no spread: run 5 or more"


def test_without_evaluation_the_training_area_decides(tmp_path: Path) -> None:
    paths = [
        write_run(tmp_path / f"{name}-{seed}", name, seed, None, accuracy)
        for name, accuracy in (("grpo", (0.0, 0.2)), ("dapo", (0.4, 0.8)))
        for seed in range(2)
    ]
    summary = summarize(read_scores(paths))
    assert summary.metric == "area"
    assert summary.pairs[0].difference.estimate.value == pytest.approx(0.5)


def test_settings_that_differ_within_an_expression_are_told_apart(tmp_path: Path) -> None:
    paths = [
        write_run(tmp_path / f"{rate}", "grpo", overrides={"updates.optimizer.lr": rate})
        for rate in (0.1, 0.2)
    ]
    names = [score.name for score in read_scores(paths)]
    assert names == ["grpo (updates.optimizer.lr=0.1)", "grpo (updates.optimizer.lr=0.2)"]


def test_the_same_run_twice_is_an_error(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / "a"), write_run(tmp_path / "b")]
    with pytest.raises(UserError, match=r"b repeats .*a: grpo on sums with seed 0"):
        read_scores(paths)


def test_an_unfinished_run_is_an_error_that_says_how_to_finish_it(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:2]))
    with pytest.raises(UserError, match=r"isn't finished \(step 2 of 3\).*train --resume"):
        read_scores([run])


def test_the_page_needs_nothing_from_elsewhere_and_escapes_names(tmp_path: Path) -> None:
    paths = runs_of(tmp_path, **{"grpo": [0.1, 0.3], "<script>x": [0.2, 0.4]})
    page = compare_runs(paths, tmp_path / "out").page.read_text()
    links = set(re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?([^"')\s>]+)""", page))
    assert not {link for link in links if not link.startswith("#")}
    assert "<script" not in page
    assert "default-src &#x27;none&#x27;" in page
    assert page.count("<svg") == 2
    for heading in ("Standings", "Pairs", "Learning curves", "Performance profile"):
        assert f"<h2>{heading}</h2>" in page
    numbers = json.loads((tmp_path / "out" / "results.json").read_text())
    assert numbers["standings"][0]["final"]["value"] == pytest.approx(0.2)


def test_equal_steps_at_unequal_cost_are_pointed_out(tmp_path: Path) -> None:
    cheap = runs_of(tmp_path, grpo=[0.1, 0.3], rloo=[0.2, 0.4])
    assert not any("cost" in text for text in summarize(read_scores(cheap)).cautions)
    dear = write_run(tmp_path / "dear", "dapo", accuracy=(0.0, 0.5, 1.0))
    text = (dear / "metrics.jsonl").read_text().replace("100.0", "160.0")
    (dear / "metrics.jsonl").write_text(text)
    cautions = summarize(read_scores([*cheap, dear])).cautions
    assert any("a run of dapo sampled 1.6 times the tokens of one of grpo" in c for c in cautions)


def test_the_profile_is_drawn_where_the_scores_lie(tmp_path: Path) -> None:
    finals = {"grpo": [0.80, 0.82, 0.84], "dapo": [0.83, 0.85, 0.90]}
    grpo, dapo = summarize(read_scores(runs_of(tmp_path, **finals))).standings
    assert grpo.profile is not None
    assert dapo.profile is not None
    assert list(grpo.profile.steps) == list(dapo.profile.steps)
    assert grpo.profile.steps[0] == pytest.approx(78)
    assert grpo.profile.steps[-1] == pytest.approx(92)
    assert (grpo.profile.middle[0], grpo.profile.middle[-1]) == (1.0, 0.0)
    assert dapo.profile.middle[50] == pytest.approx(1 / 3)


def test_the_command_prints_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = runs_of(tmp_path, grpo=[0.1, 0.3], dapo=[0.2, 0.4])
    assert main(["compare", "--runs", *map(str, paths), "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"grpo +2 +20.0% \[10.0, 30.0\] +50.0% \[50.0, 50.0\] +300", printed)
    assert str(tmp_path / "out" / "comparison.html") in printed
    assert "Intervals of 2 seeds are too narrow: take 5 or more." in printed


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no chromium (apt-get install chromium)")
def test_the_page_draws_in_a_browser_without_complaint(tmp_path: Path) -> None:
    page = compare_runs(runs_of(tmp_path, grpo=[0.1, 0.3], dapo=[0.2, 0.4]), tmp_path / "o").page
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    line = [str(BROWSER), *flags, profile, "--dump-dom", page.resolve().as_uri()]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=True)
    assert not [row for row in done.stderr.splitlines() if "CONSOLE" in row]
    assert "Performance profile" in done.stdout
