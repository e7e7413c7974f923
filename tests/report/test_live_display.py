"""What a terminal, a log file and nobody see while a run goes on."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest
from rich.console import Console

from polyopt.report import live
from polyopt.report.live import LiveDisplay, print_batch, print_before_after, print_pipeline
from polyopt.report.sparkline import duration, number, share, sparkline

METRICS = {
    "reward/mean": 0.412,
    "accuracy": 0.383,
    "entropy": 0.61,
    "length/mean": 212.3,
    "length/max": 512.0,
    "truncated": 0.031,
    "groups/signal": 0.625,
    "grad_norm": 0.84,
    "sampler_gap": 0.0021,
    "tokens_per_second": 1834.2,
}


class Clock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(live, "time", clock)
    return clock


def a_console(terminal: bool = False, width: int = 100) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=width, color_system=None)


def text_of(console: Console) -> str:
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_a_log_gets_few_lines_and_always_the_last_step(clock: Clock) -> None:
    console = a_console()
    with LiveDisplay(100, console=console) as display:
        for step in range(1, 101):
            clock.now += 1.0
            display.update(step, METRICS)
    steps = [line[:12] for line in text_of(console).splitlines()]
    assert steps[0] == "step   1/100"
    assert steps[-1] == "step 100/100"
    assert len(steps) == 21


def test_a_line_names_every_metric(clock: Clock) -> None:
    console = a_console(width=40)
    with LiveDisplay(10, console=console) as display:
        clock.now += 2.0
        display.update(1, METRICS)
    assert text_of(console) == (
        "step  1/10  reward 0.412  accuracy 38.3%  entropy 0.61  length 212.3  truncated 3.1%  "
        "signal 62.5%  grad norm 0.84  sampler gap 0.0021  tokens/s 1,834  left 18 s\n"
    )


def test_an_interrupted_run_still_shows_its_last_step(clock: Clock) -> None:
    console = a_console()

    def interrupted() -> None:
        with LiveDisplay(10, console=console) as display:
            display.update(1, METRICS)
            display.update(2, METRICS)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [line[:10] for line in text_of(console).splitlines()] == ["step  1/10", "step  2/10"]


def test_missing_and_nan_metrics_are_shown_as_they_are(clock: Clock) -> None:
    console = a_console()
    with LiveDisplay(1, console=console) as display:
        display.update(1, {"loss": 1.0, "grad_norm": math.nan})
    assert text_of(console) == "step 1/1  grad norm nan\n"


def test_a_terminal_gets_a_panel_with_sparklines(clock: Clock) -> None:
    console = a_console(terminal=True)
    with LiveDisplay(20, title="dapo+ktae", console=console) as display:
        for step in range(1, 11):
            clock.now += 3.0
            display.update(step, METRICS | {"reward/mean": step / 10})
        display.stage("rollouts")
    shown = text_of(console).rsplit("dapo+ktae", 1)[1]
    assert "▁▂▃▃▄▅▆▆▇█" in shown
    assert "max 512" in shown
    assert "62.5%" in shown
    assert "10/20  30 s left" in shown


def test_a_resumed_run_starts_where_it_was(clock: Clock) -> None:
    display = LiveDisplay(100, start=90, console=a_console())
    assert display.step == 90
    assert display.seconds_left is None
    with display:
        clock.now += 2.0
        display.update(91, METRICS)
        assert display.seconds_left == pytest.approx(18.0)


def test_warnings_and_notes_stand_on_their_own_lines_unmarked() -> None:
    console = a_console()
    with LiveDisplay(10, console=console) as display:
        display.note("held-out [pass@1] 0.41")
        display.warn("gap [red]large[/red]")
    assert text_of(console) == "held-out [pass@1] 0.41\nwarning: gap [red]large[/red]\n"


@pytest.mark.parametrize("terminal", [True, False])
def test_quiet_prints_nothing(terminal: bool) -> None:
    console = a_console(terminal)
    with LiveDisplay(2, console=console, quiet=True) as display:
        display.note("a")
        display.warn("b")
        display.print_pipeline([{"stage": "rewards"}])
        display.print_batch({"prompts": 1})
        display.update(1, METRICS)
        display.update(2, METRICS)
        display.print_before_after({"pass@1": 0.1}, {"pass@1": 0.2})
    assert text_of(console) == ""


def test_pipeline_shows_each_stage_once_with_parts_and_papers() -> None:
    rows: list[dict[str, Any]] = [
        {"stage": "advantages", "slot": "advantages.estimator", "part": "group-z-score",
         "numbers": {"eps": 1e-6}, "idea": "grpo", "paper": "arXiv 2402.03300"},
        {"stage": "advantages", "slot": "advantages.shaping[0]", "part": "key-tokens",
         "numbers": {"top": 0.2}, "idea": None, "unknown": 1},
        {"stage": "replay"},
    ]  # fmt: skip
    console = a_console()
    print_pipeline(rows, console)
    text = text_of(console)
    assert text.count("advantages") == 1
    for word in ("eps=1e-06", "grpo", "arXiv 2402.03300", "shaping[0]", "default", "(numbers)"):
        assert word in text


def test_batch_shows_each_quantity() -> None:
    console = a_console()
    print_batch({"prompts per step": 16, "tokens": 123456, "share": 0.25}, console)
    assert [line.split("  ")[-1].strip() for line in text_of(console).splitlines()] == [
        "16",
        "123,456",
        "0.25",
    ]


def test_before_and_after_come_with_intervals_and_their_difference() -> None:
    before = {"pass@1": 0.41, "pass@1/low": 0.35, "pass@1/high": 0.47, "length/mean": 212.0}
    after = {"pass@1": 0.61, "pass@1/low": 0.55, "pass@1/high": 0.67, "pass@4": 0.7}
    console = a_console()
    print_before_after(before, after, console)
    lines = text_of(console).splitlines()
    one = next(line for line in lines if "pass@1" in line)
    assert one.split() == [
        "pass@1", "41.0%", "[35.0,", "47.0]", "61.0%", "[55.0,", "67.0]",
        "+20.0", "[+11.5,", "+28.5]",
    ]  # fmt: skip
    four = next(line for line in lines if "pass@4" in line)
    assert four.split() == ["pass@4", "-", "70.0%", "-"]


def test_sparkline_scales_bins_and_skips_what_is_not_finite() -> None:
    assert sparkline([0, 1, 2, 3], 2) == "▁█"
    assert sparkline([0, math.nan, 7], 8) == "▁█"
    assert sparkline([5, 5, 5], 3) == "▄▄▄"
    assert sparkline([], 5) == ""
    assert sparkline([0, 1], 2, ascii_only=True) == "_#"


def test_numbers_are_short() -> None:
    assert [number(v) for v in (0.000123, 0.0456, 12.345, 212.3, 1834.2, 2e9, None)] == [
        "1.2e-04", "0.0456", "12.3", "212.3", "1,834", "2.00e+09", "-",
    ]  # fmt: skip
    assert (share(0.5), share(1.0), share(None)) == ("50.0%", "100%", "-")
    assert [duration(s) for s in (9.6, 125, 7260)] == ["10 s", "2 min 05 s", "2 h 01 min"]
