"""Tables for a terminal: the resolved pipeline, batch arithmetic, before against after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from polyopt.report.intervals import Estimate, difference, estimate, finite, rate_names
from polyopt.report.sparkline import number, share


def print_pipeline(rows: Sequence[Mapping[str, Any]], console: Console | None = None) -> None:
    """Print the resolved pipeline, rows as in `run.json`: stage, part, numbers, idea, paper."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="dim")
    for heading in ("stage", "part", "numbers", "from", "paper"):
        table.add_column(heading, overflow="fold")
    stage_before = None
    for row in rows:
        stage = str(row.get("stage") or "")
        table.add_row(
            Text(stage if stage != stage_before else "", style="bold"),
            _part(row),
            Text(_numbers(row.get("numbers")), style="dim"),
            Text(str(row.get("idea") or "default"), style="" if row.get("idea") else "dim"),
            Text(str(row.get("paper") or ""), style="dim"),
        )
        stage_before = stage
    _console(console).print(table)


def print_batch(batch: Mapping[str, Any], console: Console | None = None) -> None:
    """Print the batch arithmetic, one quantity a line."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(justify="right")
    for name, value in batch.items():
        table.add_row(Text(str(name)), Text(_value(value)))
    _console(console).print(table)


def print_before_after(
    before: Mapping[str, Any], after: Mapping[str, Any], console: Console | None = None
) -> None:
    """Print two evaluation rows side by side: rates with intervals and the change between them."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="dim", title_justify="left")
    table.add_column("held-out")
    for heading in ("before", "after", "change"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name in rate_names(before, after):
        first, last = estimate(before, name), estimate(after, name)
        change = difference(first, last) if first and last else None
        table.add_row(Text(name), _rate(first), _rate(last), _change(change))
    for name in ("length/mean", "truncated", "unscored"):
        if name in before or name in after:
            write = number if name == "length/mean" else share
            cells = (Text(write(finite(row.get(name)))) for row in (before, after))
            table.add_row(Text(name, style="dim"), *cells, Text(""))
    _console(console).print(table)


def _console(console: Console | None) -> Console:
    return console or Console(highlight=False)


def _part(row: Mapping[str, Any]) -> Text:
    slot = str(row.get("slot") or "")
    inner = slot.partition(".")[2]
    text = Text(str(row.get("part") or "(numbers)"), style="cyan" if inner else "dim")
    return Text.assemble(text, (f"  {inner}", "dim")) if inner else text


def _numbers(numbers: object) -> str:
    if not isinstance(numbers, Mapping):
        return ""
    return ", ".join(f"{name}={_value(value)}" for name, value in numbers.items())


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def _rate(rate: Estimate | None) -> Text:
    if rate is None:
        return Text("-")
    text = Text(share(rate.value), style="bold")
    if rate.low is not None and rate.high is not None:
        ends = f" [{100 * rate.low:.1f}, {100 * rate.high:.1f}]"
        text.append(ends, style="dim not bold")
    return text


def _change(change: Estimate | None) -> Text:
    if change is None:
        return Text("-")
    style = "bold"
    if change.low is not None and change.high is not None:
        style = "bold green" if change.low > 0 else "bold red" if change.high < 0 else "bold"
    text = Text(f"{100 * change.value:+.1f}", style=style)
    if change.low is not None and change.high is not None:
        ends = f" [{100 * change.low:+.1f}, {100 * change.high:+.1f}]"
        text.append(ends, style="dim not bold")
    return text
