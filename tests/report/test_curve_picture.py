"""The README picture."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from polyopt.errors import UserError
from polyopt.report.curve import course, write_curve
from polyopt.report.picture import ticks
from polyopt.report.series import Series, columns

MakeRun = Callable[..., Path]
SPACE = "{http://www.w3.org/2000/svg}"


def drawn(path: Path) -> ElementTree.Element:
    return ElementTree.fromstring(path.read_text(encoding="utf-8"))


def texts(picture: ElementTree.Element) -> list[str]:
    return ["".join(text.itertext()) for text in picture.iter(f"{SPACE}text")]


def rename(run: Path, expression: str) -> Path:
    about = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(about | {"expression": expression}))
    return run


def test_a_run_gives_curves_bands_and_labelled_held_out_points(run: Path, tmp_path: Path) -> None:
    picture = drawn(write_curve(run, tmp_path / "curve.svg"))
    shown = texts(picture)
    assert shown[0] == "dapo+ktae"
    assert {"accuracy", "reward", "21.0%", "63.0%", "step", "0"} <= set(shown)
    assert len(list(picture.iter(f"{SPACE}circle"))) == 3
    bands = [p for p in picture.iter(f"{SPACE}path") if p.get("fill-opacity")]
    assert len(bands) == 2


def test_the_picture_has_its_own_background_and_no_outside_reference(
    run: Path, tmp_path: Path
) -> None:
    out = write_curve(run, tmp_path / "curve.svg")
    picture = drawn(out)
    frame = next(picture.iter(f"{SPACE}rect"))
    assert frame.get("fill") == "#ffffff"
    assert float(frame.get("width", "0")) >= float(picture.get("width", "0")) - 1
    assert "href" not in out.read_text()
    assert "url(" not in out.read_text()


def test_reward_that_equals_accuracy_is_drawn_once(run: Path, tmp_path: Path) -> None:
    path = run / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    lines = [json.dumps(row | {"reward/mean": row["accuracy"]}) for row in rows]
    path.write_text("\n".join(lines))
    shown = texts(drawn(write_curve(run, tmp_path / "curve.svg")))
    assert "accuracy" in shown
    assert "reward" not in shown


def test_recipes_get_a_colour_each_and_seeds_share_one(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"a{seed}", seed=seed) for seed in range(2)]
    runs.append(rename(make_run(tmp_path / "b", gain=0.2), "grpo"))
    picture = drawn(write_curve(runs, tmp_path / "curve.svg"))
    lines = [p for p in picture.iter(f"{SPACE}path") if p.get("stroke-width") == "2.2"]
    assert len(lines) == 4
    assert len({line.get("stroke") for line in lines}) == 2
    assert any("dapo+ktae" in text and "grpo" in text for text in texts(picture)[2:])


def test_seeds_are_averaged_and_banded_by_their_range() -> None:
    one = Series([1, 2], {"x": [1.0, 1.0]})
    two = Series([1, 2, 3], {"x": [3.0, 3.0, 3.0]})
    found = course([one, two], "x")
    assert found.steps == [1, 2, 3]
    assert found.middle == [2.0, 2.0, 3.0]
    assert (found.low, found.high) == ([1.0, 1.0, 3.0], [3.0, 3.0, 3.0])


def test_the_band_of_one_run_is_wider_where_steps_scatter() -> None:
    rows = [{"step": i, "calm": 1.0, "wild": (-1.0) ** i} for i in range(200)]
    series = columns(rows)
    for name, width in (("calm", 0.0), ("wild", 2.0)):
        found = course([series], name)
        low, high = found.low[-1], found.high[-1]
        assert low is not None
        assert high is not None
        assert high - low == pytest.approx(width, abs=0.3)


def test_user_text_is_escaped(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", text="</text><script>\x00 & <b>")
    picture = drawn(write_curve(run, tmp_path / "curve.svg"))
    assert "</text><script>\ufffd & <b>" in texts(picture)[0]
    assert not list(picture.iter(f"{SPACE}script"))


def test_missing_metrics_are_tolerated(run: Path, tmp_path: Path) -> None:
    (run / "metrics.jsonl").write_text('{"step": 1, "accuracy": NaN}\n{"step": 2}\n')
    picture = drawn(write_curve(run, tmp_path / "curve.svg"))
    assert len(list(picture.iter(f"{SPACE}circle"))) == 3
    (run / "evals.jsonl").unlink()
    assert "nan" not in write_curve(run, tmp_path / "curve.svg").read_text().lower()


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run folder"):
        write_curve(tmp_path, tmp_path / "curve.svg")


def test_ticks_are_round_and_inside() -> None:
    assert ticks(0.13, 0.71, 5) == [0.2, 0.4, 0.6]
    assert ticks(0, 200, 5) == [0, 50, 100, 150, 200]
    assert ticks(3, 3, 5) == [3.0]
