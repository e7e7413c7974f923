"""`write_page`: a comparison as one self-contained page without scripts."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from polyopt.comparison.summary import Pair, Standing, Summary, advice
from polyopt.comparison.terminal import change, interval, time_taken
from polyopt.report.curve import COLOURS, Course
from polyopt.report.intervals import Estimate
from polyopt.report.picture import Picture
from polyopt.report.sparkline import number

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
METHOD = (
    "Interquartile means (the lowest and the highest quarter of the runs left out) with "
    "percentile intervals of 2,000 stratified bootstrap resamples, at 95%. The chance that a run "
    "is better counts ties half. Differences are paired by seed where both have the seeds. Two "
    "are called apart only if both the bootstrap interval and the t interval of their difference "
    "leave out 0; the seeds still needed are those that find a difference as large as the one "
    "seen with 80% power, by the normal approximation. Intervals aren't widened for the number "
    "of pairs. Seconds are those of training steps, with cells running side by side."
)


def write_page(summary: Summary, target: Path) -> Path:
    """Write the page, and give its path."""
    title = " / ".join(row.name for row in summary.standings)
    body = "\n".join(
        (
            f"<header><h1>{_text(title)}</h1>{_facts(summary)}</header>",
            _notices(summary),
            _section("Standings", _standings(summary)),
            _section("Pairs", _pairs(summary)) if summary.pairs else "",
            _section("Learning curves", _curves(summary)),
            _section("Performance profile", _profile(summary)),
            f'<section><p class="aside">{METHOD}</p></section>',
        )
    )
    page = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{_text(title)}: polyopt comparison</title>\n<style>{_style()}</style>\n"
        '</head>\n<body>\n<nav id="bar"><span class="brand">polyopt</span>'
        f"<span>compare</span></nav>\n<main>{body}</main>\n</body>\n</html>\n"
    )
    draft = target.with_name(f".{target.name}.draft")
    draft.write_text(page, encoding="utf-8")
    os.replace(draft, target)
    return target


def _style() -> str:
    shared = files("polyopt.report").joinpath("page", "page.css").read_text(encoding="utf-8")
    own = files("polyopt.comparison").joinpath("page.css").read_text(encoding="utf-8")
    return f"{shared}\n{own}"


def _section(title: str, content: str) -> str:
    return f"<section><h2>{title}</h2>{content}</section>" if content else ""


def _facts(summary: Summary) -> str:
    runs = sum(row.runs for row in summary.standings)
    facts = [f"{runs} runs", *summary.tasks]
    return f'<p class="facts">{"".join(f"<span>{_text(fact)}</span>" for fact in facts)}</p>'


def _notices(summary: Summary) -> str:
    items = [
        f"<li><b>{_text(f.cell)}</b> failed: {_text(f.error)} <code>{_text(f.log)}</code></li>"
        for f in summary.failures
    ]
    items += [f"<li>{_text(caution)}</li>" for caution in summary.cautions]
    return f'<ul class="notices">{"".join(items)}</ul>' if items else ""


def _standings(summary: Summary) -> str:
    finals = [row.final for row in summary.standings]
    areas = [row.area for row in summary.standings]
    headings = ("ideas", "runs", "held-out pass@1", "area under training accuracy")
    rows = [
        (
            f"{_dot(i)}{_text(row.name)}",
            str(row.runs),
            f"{interval(row.final)}{_track(row.final, finals, i)}",
            f"{interval(row.area)}{_track(row.area, areas, i)}",
            number(row.tokens),
            time_taken(row.seconds),
        )
        for i, row in enumerate(summary.standings)
    ]
    return _table((*headings, "tokens sampled per run", "time per run"), rows)


def _pairs(summary: Summary) -> str:
    rows = [_pair(pair) for pair in summary.pairs]
    headings = ("pair", f"difference in {summary.metric}, points", "chance that a run is better")
    return _table((*headings, "seeds", "verdict"), rows)


def _pair(pair: Pair) -> tuple[str, ...]:
    found = pair.difference
    kind = "unsure"
    if found.separated:
        kind = "good" if found.estimate.value > 0 else "bad"
    return (
        f'{_text(pair.second)} <span class="aside">over</span> {_text(pair.first)}',
        change(found.estimate),
        interval(pair.improvement),
        f"{found.seeds}, {'paired' if found.paired else 'not paired'}",
        f'<span class="verdict {kind}">{_text(advice(pair))}</span>',
    )


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; on a phone, where rows become blocks, each cell tells its heading."""
    head = "".join(f"<th>{_text(heading)}</th>" for heading in headings)
    body = ""
    for first, *others in rows:
        named = zip(headings[1:], others, strict=True)
        cells = "".join(f'<td data-heading="{_text(h)}">{cell}</td>' for h, cell in named)
        body += f'<tr class="first"><th>{first}</th>{cells}</tr>'
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{table}</div>'


def _track(estimate: Estimate | None, all_of_them: Sequence[Estimate | None], i: int) -> str:
    """An interval as a bar with a dot, on the scale of its whole column."""
    if estimate is None:
        return ""
    known = [e for e in all_of_them if e is not None]
    ends = [v for e in known for v in (e.value, e.low, e.high) if v is not None]
    low, room = min(ends), (max(ends) - min(ends)) or 1.0

    def at(value: float) -> float:
        return 4 + 92 * (value - low) / room

    bar = ""
    if estimate.low is not None and estimate.high is not None:
        width = at(estimate.high) - at(estimate.low)
        bar = f'<i style="left:{at(estimate.low):.1f}%;width:{width:.1f}%"></i>'
    dot = f'<b style="left:{at(estimate.value):.1f}%"></b>'
    return f'<div class="track" style="--own:var(--c{i % len(COLOURS) + 1})">{bar}{dot}</div>'


def _curves(summary: Summary) -> str:
    caption = "interquartile mean of the seeds, smoothed; band: 95% bootstrap interval"
    drawn = []
    for task in summary.tasks:
        rows = [(i, r.curves[task]) for i, r in enumerate(summary.standings) if task in r.curves]
        if rows:
            drawn.append(_picture(summary, rows, ("Training accuracy", task, caption), "accuracy"))
    return "".join(drawn)


def _profile(summary: Summary) -> str:
    rows = [(i, r.profile) for i, r in enumerate(summary.standings) if r.profile is not None]
    facts = f"share of runs whose {summary.metric} is above a score"
    caption = "higher is better; band: pointwise 95% bootstrap interval"
    words = ("Performance profile", facts, caption)
    return _picture(summary, rows, words, "runs", along="score in % >") if rows else ""


def _picture(
    summary: Summary,
    courses: Sequence[tuple[int, Course]],
    words: tuple[str, str, str],
    label: str,
    along: str = "step",
) -> str:
    picture = Picture(*words)
    panel = picture.panel(0, 1, label, share=True)
    steps = [step for _, course in courses for step in course.steps]
    values = [v for _, c in courses for v in (*c.low, *c.middle, *c.high) if v is not None]
    panel.scale([min(steps), max(steps)], values, along=along)
    for i, course in courses:
        colour = COLOURS[i % len(COLOURS)]
        panel.band(course.steps, course.low, course.high, colour)
        panel.line(course.steps, course.middle, colour)
    return f'<figure class="chart wide">{_legend(summary.standings)}{picture.text()}</figure>'


def _legend(standings: Sequence[Standing]) -> str:
    items = "".join(f"<li>{_dot(i)}{_text(row.name)}</li>" for i, row in enumerate(standings))
    return f'<ul class="legend">{items}</ul>'


def _dot(i: int) -> str:
    return f'<i class="dot" style="background:var(--c{i % len(COLOURS) + 1})"></i>'


def _text(text: str) -> str:
    return html.escape(text)
