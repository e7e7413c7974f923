"""The report page as a file: self-contained, escaped, bounded, tolerant."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from polyopt.errors import UserError
from polyopt.report.html import write_report

MakeRun = Callable[..., Path]
EVIL = "</script><img src=x onerror=alert(1)><!--<script>\u2028\ud800 & {{data}} ]]>"


class Elements(HTMLParser):
    """Start tags with attributes, and the text of each script and style."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self.texts.append("")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem and self.texts:
            self.texts[-1] += data


def page_of(run: Path) -> str:
    return write_report(run).read_text(encoding="utf-8")


def data_of(page: str) -> dict[str, Any]:
    """Every JSON element of a page by id; fails on NaN, which browsers refuse."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    found = re.findall(r'<script type="application/json" id="([\w-]+)">(.*?)</script>', page, re.S)
    return {name: json.loads(text, parse_constant=refuse) for name, text in found}


def edit(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    rows = [change(json.loads(line)) for line in path.read_text().split("\n") if line]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_page_asks_for_nothing_outside_itself(run: Path) -> None:
    page = page_of(run)
    parsed = Elements(page)
    for tag, attributes in parsed.tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "audio", "video")
        assert "src" not in attributes
        assert "srcset" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
    code = "".join(parsed.texts)
    for word in (
        "@import",
        "url(",
        "fetch(",
        "XMLHttpRequest",
        "import(",
        "sendBeacon",
        "WebSocket",
    ):
        assert word not in code
    addresses = set(re.findall(r"\w+://[\w./]*", page))
    assert addresses <= {"https://arxiv.org/abs/"}


def test_policy_admits_only_the_pages_own_script(run: Path) -> None:
    parsed = Elements(page_of(run))
    metas = [a for tag, a in parsed.tags if tag == "meta"]
    policy = next(a["content"] for a in metas if a.get("http-equiv") == "Content-Security-Policy")
    digest = base64.b64encode(hashlib.sha256(parsed.texts[-1].encode()).digest()).decode()
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert f"script-src 'sha256-{digest}'" in policy


def test_user_text_adds_no_element(make_run: MakeRun, tmp_path: Path) -> None:
    plain = Elements(page_of(make_run(tmp_path / "plain", steps=10)))
    folder = make_run(tmp_path / "evil", steps=10, text=EVIL.replace("\ud800", ""))
    evil = Elements(page_of(folder))
    assert [tag for tag, _ in evil.tags] == [tag for tag, _ in plain.tags]


def test_user_text_arrives_unchanged(run: Path) -> None:
    edit(run / "rollouts" / "step-000001.jsonl", lambda row: row | {"prompt": EVIL})
    edit(run / "rollouts" / "before.jsonl", lambda row: row | {"completion": EVIL})
    data = data_of(page_of(run))
    assert data["group-0"]["prompt"] == EVIL
    assert data["pair-0"]["before"][0]["completion"] == EVIL


def test_headline_compares_the_first_and_last_evaluation(run: Path) -> None:
    headline = data_of(page_of(run))["run"]["headline"]
    assert headline["kind"] == "held-out"
    assert [rate["name"] for rate in headline["rates"]] == ["pass@1", "pass@4", "maj@4"]
    assert headline["rates"][0]["before"]["value"] == pytest.approx(0.21)
    assert headline["rates"][0]["after"]["value"] == pytest.approx(0.63)
    assert headline["rates"][0]["change"]["low"] == pytest.approx(0.42 - 0.06 * 2**0.5)


def test_without_evaluations_the_headline_is_training_accuracy(run: Path) -> None:
    (run / "evals.jsonl").unlink()
    headline = data_of(page_of(run))["run"]["headline"]
    assert headline["kind"] == "training"
    assert headline["averaged"] == 6
    assert headline["rates"][0]["before"]["value"] < headline["rates"][0]["after"]["value"]


@pytest.mark.parametrize("kept", ["run.json", "metrics.jsonl", "evals.jsonl"])
def test_any_one_file_is_enough(run: Path, kept: str) -> None:
    for path in (*run.glob("rollouts/*"), *run.glob("*.json*")):
        if path.name != kept:
            path.unlink()
    data = data_of(page_of(run))
    assert set(data) == {"run"}
    assert bool(data["run"]["curves"]["steps"]) == (kept == "metrics.jsonl")


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run folder"):
        write_report(tmp_path)


def test_missing_nan_and_odd_values_become_null(run: Path) -> None:
    odd = {"loss": float("nan"), "grad_norm": float("inf"), "entropy": None, "reward/mean": "much"}
    edit(run / "metrics.jsonl", lambda row: row | (odd if row["step"] == 3 else {}))
    edit(run / "evals.jsonl", lambda row: row | {"pass@1/low": float("nan")})
    bad = {"reward": float("nan"), "accuracy": None, "logp": [float("nan")], "terms": None}
    edit(run / "rollouts" / "step-000005.jsonl", lambda row: row | bad)
    data = data_of(page_of(run))
    columns = data["run"]["curves"]["columns"]
    assert all(columns[name][2] is None for name in odd)
    assert all(columns[name][3] is not None for name in odd)
    assert (
        "Missing or not finite at some steps: loss, grad_norm, reward/mean."
        in (data["run"]["notices"])
    )
    assert data["run"]["headline"]["rates"][0]["change"]["low"] is None


def test_cut_off_lines_are_left_out_and_counted(run: Path) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 61, "rew')
    with (run / "rollouts" / "step-000005.jsonl").open("a") as file:
        file.write('{"step": 5, "gro')
    data = data_of(page_of(run))["run"]
    assert data["curves"]["counted"] == 60
    assert "1 unreadable line of metrics.jsonl left out." in data["notices"]
    assert "1 unreadable line of rollouts left out." in data["notices"]


def test_skipped_updates_and_unscored_rollouts_are_told(run: Path) -> None:
    edit(run / "metrics.jsonl", lambda row: row | {"unscored": 2})
    told = data_of(page_of(run))["run"]["notices"]
    assert told == [
        "Optimizer updates skipped over the run: 1.",
        "Rollouts that could not be scored: 120.",
    ]


def test_long_runs_are_thinned_to_a_thousand_points(make_run: MakeRun, tmp_path: Path) -> None:
    curves = data_of(page_of(make_run(tmp_path, steps=2500, every=2500)))["run"]["curves"]
    assert (curves["counted"], curves["bin"]) == (2500, 3)
    assert len(curves["steps"]) == 834
    assert curves["steps"][-1] == 2500
    assert all(len(column) == 834 for column in curves["columns"].values())


def test_very_many_metrics_share_a_bounded_number_of_points(run: Path) -> None:
    extra = {f"extra/{i}": i for i in range(1200)}
    edit(run / "metrics.jsonl", lambda row: row | extra)
    many = [json.dumps({"step": step, **extra}) for step in range(61, 301)]
    with (run / "metrics.jsonl").open("a") as file:
        file.write("\n".join(many))
    curves = data_of(page_of(run))["run"]["curves"]
    assert len(curves["columns"]) > 1200
    assert len(curves["steps"]) <= 100


def test_rollouts_stay_within_the_budget(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(tmp_path, steps=400, every=4, groups=2, tokens=40)
    page = write_report(run, 300_000).read_text(encoding="utf-8")
    data = data_of(page)["run"]["groups"]
    assert data["logged"] == 101 * 16
    assert 100 < data["shown"] < data["logged"]
    groups = sum(len(text) for name, text in _elements(page) if name.startswith("group-"))
    assert 200_000 < groups < 330_000


def test_long_texts_of_the_settings_say_what_is_missing(run: Path) -> None:
    about = json.loads((run / "run.json").read_text())
    about["arguments"]["system"] = "x" * 5000
    (run / "run.json").write_text(json.dumps(about))
    shown = data_of(page_of(run))["run"]["about"]["arguments"]["system"]
    assert shown == "x" * 2000 + " ... (3,000 more characters)"


def _elements(page: str) -> list[tuple[str, str]]:
    return re.findall(r'<script type="application/json" id="([\w-]+)">(.*?)</script>', page, re.S)


def test_a_larger_budget_takes_every_rollout(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=60, every=1, groups=2, rollouts=4, tokens=30)
    few = data_of(write_report(run, 100_000).read_text(encoding="utf-8"))["run"]["groups"]
    every = data_of(write_report(run, 50_000_000).read_text(encoding="utf-8"))["run"]["groups"]
    assert few["shown"] < few["logged"]
    assert every["shown"] == every["logged"] == 60 * 8


def test_every_number_of_a_token_reaches_the_page(run: Path) -> None:
    data = data_of(page_of(run))
    (rollout, *_) = next(v for k, v in data.items() if k.startswith("group-"))["rollouts"]
    for name in (
        "advantages", "advantages/group-z-score", "advantages/key-tokens", "logp", "entropy",
        "ratio", "loss_weight",
    ):  # fmt: skip
        assert name in rollout, name
