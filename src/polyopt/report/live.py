"""`LiveDisplay`: a run while it goes on, in a terminal or as plain lines in a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from polyopt.report.sparkline import duration, number, share, sparkline
from polyopt.report.tables import print_batch, print_before_after, print_pipeline

__all__ = ["LiveDisplay", "print_batch", "print_before_after", "print_pipeline"]

PLAIN_SECONDS = 5.0
KEPT_INTERVALS = 50

#: Label, metric, how it is written, whether its course is drawn.
ROWS: tuple[tuple[str, str, Callable[[float | None], str], bool], ...] = (
    ("reward", "reward/mean", number, True),
    ("accuracy", "accuracy", share, True),
    ("entropy", "entropy", number, True),
    ("length", "length/mean", number, True),
    ("truncated", "truncated", share, False),
    ("signal", "groups/signal", share, False),
    ("grad norm", "grad_norm", number, False),
    ("sampler gap", "sampler_gap", number, False),
    ("tokens/s", "tokens_per_second", number, False),
)


class LiveDisplay:
    """Shows a run's progress: `with LiveDisplay(steps) as display: display.update(step, metrics)`.

    In a terminal, a panel that stays in place; elsewhere (CI logs, files) one plain line at most
    every `interval` seconds, plus the last step. `quiet` prints nothing at all.

    Args:
        steps: Steps of the whole run.
        start: Steps done before this process (a resumed run).
        title: What is being run, shown at the top.
        quiet: Print nothing.
        console: Where to print; standard output when None.
        plain: Force plain lines (True) or the panel (False); None decides by the console.
        interval: Least seconds between two plain lines.
    """

    def __init__(
        self,
        steps: int,
        *,
        start: int = 0,
        title: str = "",
        quiet: bool = False,
        console: Console | None = None,
        plain: bool | None = None,
        interval: float = PLAIN_SECONDS,
    ) -> None:
        self.steps = steps
        self.title = title
        self.quiet = quiet
        self.console = console or Console(highlight=False)
        self.plain = not self.console.is_terminal if plain is None else plain
        self.interval = interval
        self.step = start
        self._metrics: Mapping[str, float] = {}
        self._history: dict[str, list[float]] = {}
        self._stage = ""
        self._started = time.monotonic()
        self._updated = self._started
        self._step_seconds: list[float] = []
        self._printed_at = float("-inf")
        self._printed_step: int | None = None
        self._live: Live | None = None

    def __enter__(self) -> LiveDisplay:
        self._started = self._updated = time.monotonic()
        if not self.quiet and not self.plain:
            self._live = Live(
                console=self.console, get_renderable=self._render, refresh_per_second=2
            )
            self._live.start(refresh=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stage = ""
        if self._live is not None:
            self._live.stop()
            self._live = None
        elif self._printed_step != self.step and self._metrics:
            self._print_line()

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show the metrics of a finished step."""
        now = time.monotonic()
        self._step_seconds = [*self._step_seconds, now - self._updated][-KEPT_INTERVALS:]
        self._updated, self.step, self._metrics, self._stage = now, step, metrics, ""
        for _, name, _, drawn in ROWS:
            if drawn and isinstance(metrics.get(name), int | float):
                self._history.setdefault(name, []).append(float(metrics[name]))
        due = now - self._printed_at >= self.interval or step >= self.steps
        if self.plain and due:
            self._print_line()

    def stage(self, name: str) -> None:
        """Show what the running step is doing (`"rollouts"`); terminals only."""
        self._stage = name

    def note(self, text: str) -> None:
        """Print a line above the display."""
        if not self.quiet:
            self.console.print(Text(text), soft_wrap=True)

    def warn(self, text: str) -> None:
        """Print a warning above the display."""
        if not self.quiet:
            line = Text.assemble(("warning: ", "bold yellow"), text)
            self.console.print(line, soft_wrap=True)

    def print_pipeline(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """`print_pipeline` on this display's console."""
        if not self.quiet:
            print_pipeline(rows, self.console)

    def print_batch(self, batch: Mapping[str, Any]) -> None:
        """`print_batch` on this display's console."""
        if not self.quiet:
            print_batch(batch, self.console)

    def print_before_after(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """`print_before_after` on this display's console."""
        if not self.quiet:
            print_before_after(before, after, self.console)

    @property
    def seconds_left(self) -> float | None:
        """Expected seconds to the end, from the mean of the last steps; None before the first."""
        if not self._step_seconds:
            return None
        mean = sum(self._step_seconds) / len(self._step_seconds)
        return max(0.0, (self.steps - self.step) * mean - (time.monotonic() - self._updated))

    def _print_line(self) -> None:
        if self.quiet:
            return
        self._printed_at, self._printed_step = time.monotonic(), self.step
        self.console.print(Text(self._line()), soft_wrap=True)

    def _line(self) -> str:
        fields = [f"step {self.step:>{len(str(self.steps))}}/{self.steps}"]
        for label, name, write, _ in ROWS:
            if name in self._metrics:
                fields.append(f"{label} {write(self._metrics[name])}")
        if self.step < self.steps:
            fields.append(f"left {duration(self.seconds_left)}")
        return "  ".join(fields)

    def _render(self) -> RenderableType:
        cells = [self._cells(*row) for row in ROWS if row[1] in self._metrics]
        body: RenderableType = Text("waiting for the first step", style="dim")
        return Panel(
            Group(self._grid(cells) if cells else body, Text(), self._progress()),
            title=Text(self.title or "polyopt", style="bold"),
            title_align="left",
            border_style="dim",
            padding=(0, 1),
            width=min(self.console.width, 92),
        )

    def _grid(self, cells: Sequence[tuple[Text, Text, Text]]) -> Table:
        columns = 2 if self.console.width >= 76 else 1
        grid = Table.grid(padding=(0, 1))
        for _ in range(columns):
            grid.add_column(style="dim", min_width=11)
            grid.add_column(justify="right", min_width=8)
            grid.add_column(style="cyan", min_width=14)
        per_column = -(-len(cells) // columns)
        for i in range(per_column):
            grid.add_row(*(cell for row in cells[i::per_column] for cell in row))
        return grid

    def _cells(
        self, label: str, name: str, write: Callable[[float | None], str], drawn: bool
    ) -> tuple[Text, Text, Text]:
        value = self._metrics[name]
        bad = isinstance(value, float) and value != value
        shown = Text(write(value), style="bold red" if bad else "bold")
        if name == "length/mean" and "length/max" in self._metrics:
            course = f"max {number(self._metrics['length/max'])}"
        elif drawn:
            ascii_only = self.console.options.ascii_only
            course = sparkline(self._history.get(name, ()), 16, ascii_only=ascii_only)
        else:
            course = ""
        return Text(label), shown, Text(course)

    def _progress(self) -> RenderableType:
        line = Table.grid(padding=(0, 1), expand=True)
        line.add_column(ratio=1)
        line.add_column(justify="right", no_wrap=True)
        words = f"{self.step}/{self.steps}"
        if self.step < self.steps:
            left = self.seconds_left
            words += f"  {duration(left)} left" if left is not None else ""
            words += f"  {self._stage}" if self._stage else ""
        else:
            words += f"  in {duration(time.monotonic() - self._started)}"
        bar = ProgressBar(total=max(self.steps, 1), completed=min(self.step, self.steps))
        line.add_row(bar, Text(words, style="dim"))
        return line
