"""A comparison as tables in a terminal."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from polyopt.comparison.summary import Pair, Summary, advice
from polyopt.report.intervals import Estimate
from polyopt.report.sparkline import duration, number, share


def print_summary(summary: Summary, console: Console | None = None) -> None:
    """Print the standings, the pairs, and the cells that failed with their logs."""
    console = console or Console(highlight=False)
    console.print(_standings(summary))
    for caution in summary.cautions:
        console.print(Text(caution, style="yellow"), soft_wrap=True)
    if summary.pairs:
        console.print(_pairs(summary))
    for pair in summary.pairs:
        console.print(Text(f"{pair.second} over {pair.first}: {advice(pair)}"), soft_wrap=True)
    for failure in summary.failures:
        text = Text.assemble(("failed  ", "bold red"), f"{failure.cell}: {failure.error}")
        console.print(text, soft_wrap=True)
        console.print(Text(f"        log {failure.log}", style="dim"), soft_wrap=True)


def interval(estimate: Estimate | None) -> str:
    """`43.1% [40.2, 46.0]`."""
    if estimate is None:
        return "-"
    text = share(estimate.value)
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} [{100 * estimate.low:.1f}, {100 * estimate.high:.1f}]"


def change(estimate: Estimate) -> str:
    """`+3.1 [+0.2, +6.0]`, in points."""
    text = f"{100 * estimate.value:+.1f}"
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} [{100 * estimate.low:+.1f}, {100 * estimate.high:+.1f}]"


def time_taken(seconds: float | None) -> str:
    """A duration, with a decimal where it is short."""
    short = seconds is not None and seconds < 10
    return f"{seconds:.1f} s" if short else duration(seconds)


def _standings(summary: Summary) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="dim")
    table.add_column("ideas", overflow="fold")
    for heading in ("runs", "held-out pass@1", "training area", "tokens", "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in summary.standings:
        table.add_row(
            Text(row.name, style="bold cyan"),
            str(row.runs),
            interval(row.final),
            interval(row.area),
            number(row.tokens),
            time_taken(row.seconds),
        )
    table.caption = "interquartile means with stratified-bootstrap 95% intervals; cost per run"
    table.caption_justify = "left"
    return table


def _pairs(summary: Summary) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="dim")
    table.add_column("pair", overflow="fold")
    for heading in (f"{summary.metric} in points", "chance better"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("seeds to separate", no_wrap=True)
    for pair in summary.pairs:
        table.add_row(_versus(pair), *_cells(pair))
    return table


def _versus(pair: Pair) -> Text:
    return Text.assemble((pair.second, "bold"), (" over ", "dim"), (pair.first, "bold"))


def _cells(pair: Pair) -> tuple[Text, Text, Text]:
    style = "bold green" if pair.difference.separated else "dim"
    return (
        Text(change(pair.difference.estimate)),
        Text(interval(pair.improvement)),
        Text(_seeds(pair), style=style),
    )


def _seeds(pair: Pair) -> str:
    found = pair.difference
    if found.separated:
        return f"{found.seeds} were enough"
    return f"{found.seeds} + {found.more_seeds}" if found.more_seeds else f"{found.seeds} + ?"
