"""`write_report`: a run folder as one self-contained page, `report.html`."""

from __future__ import annotations

import base64
import hashlib
import html
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

from polyopt.metrics import explanation
from polyopt.report.intervals import Estimate, difference, estimate, finite, rate_names
from polyopt.report.record import RunRecord, read_run
from polyopt.report.rollout_sample import RolloutSample, page_json, sample_groups, sample_pairs
from polyopt.report.series import Series, columns, mean, rounded, thin

POINTS = 1000
ALL_POINTS = 120_000
ROLLOUT_BYTES = 5_000_000
PAIR_BYTES = 1_000_000
MOST_EVALS = 500
MOST_TEXT = 2000

STYLES = ("page.css", "rollouts.css", "live.css")
SCRIPTS = (
    "format.js",
    "charts.js",
    "distributions.js",
    "curves.js",
    "summary.js",
    "colours.js",
    "tokens.js",
    "rollouts.js",
    "main.js",
)


def write_report(run: Path, rollout_bytes: int = ROLLOUT_BYTES) -> Path:
    """Write `report.html` into a run folder, and give its path.

    The page needs no network and no other file. It holds at most `POINTS` points per curve and
    about `rollout_bytes` of rollouts, evenly over the steps, and says what it leaves out.

    Raises:
        UserError: `run` isn't a run folder.
    """
    run = Path(run)
    record = read_run(run)
    groups = sample_groups(run / "rollouts", rollout_bytes)
    pairs = sample_pairs(run / "rollouts", PAIR_BYTES)
    data = page_data(record, columns(record.metrics), groups, pairs)
    page = page_html(data, rollout_texts(groups, pairs))
    target, draft = run / "report.html", run / ".report.html.draft"
    draft.write_text(page, encoding="utf-8")
    os.replace(draft, target)
    return target


def page_html(
    data: Mapping[str, Any],
    texts: Mapping[str, str],
    *,
    scripts: Sequence[str] = SCRIPTS,
    requests: str = "'none'",
) -> str:
    """The page.

    Args:
        data: What `page_data` gives.
        texts: JSON that the page reads by name: the rollouts.
        scripts: The page's scripts.
        requests: Where the page may send requests to, as a content security policy says it.
    """
    script = _script(scripts)
    elements = {"run": page_json(data), **texts}
    return _fill(
        _asset("template.html"),
        {
            "title": html.escape(f"{data['title']}: polyopt run"),
            "policy": html.escape(content_policy(script, requests)),
            "style": _style(),
            "script": script,
            "data": "\n".join(_data_element(name, text) for name, text in elements.items()),
        },
    )


def rollout_texts(groups: RolloutSample, pairs: RolloutSample) -> dict[str, str]:
    """The JSON of each group and each before/after pair, by its name in the page."""
    return {
        f"{kind}-{i}": text
        for kind, sample in (("group", groups), ("pair", pairs))
        for i, text in enumerate(sample.texts)
    }


def page_data(
    record: RunRecord, series: Series, groups: RolloutSample, pairs: RolloutSample
) -> dict[str, Any]:
    """Everything the page shows except the rollouts themselves."""
    unreadable = dict(record.unreadable)
    if groups.unreadable + pairs.unreadable:
        unreadable["rollouts"] = groups.unreadable + pairs.unreadable
    return {
        "title": record.title,
        "about": _bounded(record.about),
        "headline": headline(record, series),
        "evals": _eval_rows(record.evals),
        "curves": _curves(series),
        "totals": _totals(series),
        "notices": notices(series, unreadable),
        "groups": _sample_data(groups),
        "pairs": _sample_data(pairs),
    }


def headline(record: RunRecord, series: Series) -> dict[str, Any] | None:
    """Before against after: held-out rates if there are two evaluations, else training reward."""
    return _held_out_headline(record.evals) or _training_headline(series)


def _held_out_headline(evals: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    if len(evals) < 2:
        return None
    before, after = evals[0], evals[-1]
    rates = [
        _comparison(name, first, last)
        for name in rate_names(before, after)
        if (first := estimate(before, name)) and (last := estimate(after, name))
    ]
    return (
        {
            "kind": "held-out",
            "rates": rates,
            "steps": [before.get("step"), after.get("step")],
            "prompts": finite(after.get("prompts")),
            "samples": finite(after.get("samples")),
        }
        if rates
        else None
    )


def _training_headline(series: Series) -> dict[str, Any] | None:
    name = next((n for n in ("accuracy", "reward/mean") if n in series.columns), None)
    if name is None:
        return None
    values = series.columns[name]
    n = max(1, len(values) // 10)
    first, last = mean(values[:n]), mean(values[-n:])
    if first is None or last is None:
        return None
    return {
        "kind": "training",
        "rates": [_comparison(name, Estimate(first), Estimate(last))],
        "steps": [series.steps[0], series.steps[-1]],
        "averaged": n,
    }


def notices(series: Series, unreadable: Mapping[str, int]) -> list[str]:
    """Sentences on what a reader should know before trusting the curves."""
    found = [
        f"{count:,} unreadable line{'s' if count != 1 else ''} of {name} left out."
        for name, count in unreadable.items()
    ]
    for name, words in (
        ("skipped_updates", "Optimizer updates skipped over the run"),
        ("unscored", "Rollouts that could not be scored"),
    ):
        total = _total(series.columns.get(name, ()))
        if total:
            found.append(f"{words}: {total:,.0f}.")
    gaps = [
        name
        for name in ("loss", "grad_norm", "reward/mean")
        if name in series.columns and any(value is None for value in series.columns[name])
    ]
    if gaps:
        found.append(f"Missing or not finite at some steps: {', '.join(gaps)}.")
    return found


def _comparison(name: str, before: Estimate, after: Estimate) -> dict[str, Any]:
    change = difference(before, after)
    sides = {"before": before, "after": after, "change": change}
    return {"name": name, **{side: asdict(value) for side, value in sides.items()}}


def _eval_rows(evals: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    stride = max(1, math.ceil(len(evals) / MOST_EVALS))
    kept = [*evals[:-1:stride], evals[-1]] if evals else []
    return [
        {name: rounded(finite(value), 5) for name, value in row.items() if name != "phase"}
        for row in kept
    ]


def _curves(series: Series) -> dict[str, Any]:
    points = max(100, min(POINTS, ALL_POINTS // max(len(series.columns), 1)))
    thinned = thin(series, points)
    return {
        "steps": thinned.steps,
        "bin": thinned.bin,
        "counted": len(series.steps),
        "about": {name: text for name in thinned.columns if (text := explanation(name))},
        "columns": {
            name: [rounded(value, 5) for value in values]
            for name, values in thinned.columns.items()
        },
    }


def _totals(series: Series) -> dict[str, float | int | None]:
    return {
        name: rounded(_total(values), 6)
        for name, values in series.columns.items()
        if name.startswith(("seconds/", "tokens/"))
    }


def _total(values: Sequence[float | None]) -> float:
    return math.fsum(value for value in values if value is not None)


def _sample_data(sample: RolloutSample) -> dict[str, Any]:
    return {
        "index": sample.index,
        "shown": sample.shown,
        "logged": sample.logged,
        "steps": sample.steps,
    }


def _bounded(value: Any) -> Any:
    """JSON-safe copy of `run.json`: no NaN, and long texts end in how much was left out."""
    if isinstance(value, Mapping):
        return {str(key): _bounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_bounded(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, int):
        return value
    text = str(value)
    extra = len(text) - MOST_TEXT
    return text if extra <= 0 else f"{text[:MOST_TEXT]} ... ({extra:,} more characters)"


def _fill(template: str, values: Mapping[str, str]) -> str:
    """Put values into `{{name}}` places, in one pass: values aren't searched for places."""
    return re.sub(r"\{\{(\w+)\}\}", lambda place: values[place[1]], template)


def _data_element(name: str, text: str) -> str:
    return f'<script type="application/json" id="{name}">{text}</script>'


def content_policy(script: str, requests: str = "'none'") -> str:
    """Forbids the browser every other script, and every request but to `requests`."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; connect-src {requests}; "
        f"script-src 'sha256-{digest}'"
    )


def _style() -> str:
    return "\n".join(map(_asset, STYLES))


def _script(names: Sequence[str]) -> str:
    body = "\n".join(map(_asset, names))
    return f'(() => {{\n"use strict";\n{body}}})();\n'


def _asset(name: str) -> str:
    return files("polyopt.report").joinpath("page", name).read_text(encoding="utf-8")
