"""Which logged rollouts go into a report, and how they are written compactly.

The logs of a long run hold gigabytes; the page holds a few megabytes. Steps are taken evenly
over the run, whole groups at a time, until the bytes are used up. What is left out is counted.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from polyopt.report.intervals import finite
from polyopt.report.record import read_objects, step_of
from polyopt.report.series import rounded

STEP_STOPS = 48
GROUP_BYTES = 160_000
GROUP_ROLLOUTS = 32
MOST_TOKENS = 2048
FEWEST_TOKENS = 64
PROMPT_CHARACTERS = 6000
COLUMNS = {"mask": 1, "advantages": 3, "logp": 3, "entropy": 3, "ratio": 4, "loss_weight": 3}
"""Columns of a rollout's tokens, with the significant digits that the page gets."""

Row = dict[str, Any]


@dataclass
class RolloutSample:
    """Groups (or before/after pairs) chosen for the page.

    Attributes:
        index: A small entry per group, for the page's controls.
        texts: The JSON text of each group, in the same order.
        shown: Rollouts inside `texts`.
        logged: Rollouts in the logs.
        steps: Steps that were logged.
        unreadable: Log lines that aren't JSON objects, among those read.
    """

    index: list[Row] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    shown: int = 0
    logged: int = 0
    steps: int = 0
    unreadable: int = 0

    def add(self, entry: Row, text: str, rollouts: int) -> None:
        """Take one more group."""
        self.index.append(entry)
        self.texts.append(text)
        self.shown += rollouts


def sample_groups(
    folder: Path, budget: int, count: Callable[[Path], int] | None = None
) -> RolloutSample:
    """Groups of training rollouts from `folder/step-*.jsonl`, evenly over the steps.

    Up to `STEP_STOPS` steps share the bytes; groups whose rollouts disagree come first, since
    only they carry credit in group-relative methods. Bytes left over go to further steps.
    `count` gives a file's lines (`count_lines`, or one that remembers).
    """
    files = sorted(folder.glob("step-*.jsonl"), key=_file_step)
    sample = RolloutSample(logged=sum(map(count or count_lines, files)), steps=len(files))
    planned, left = min(len(files), STEP_STOPS), budget
    for position, chosen in enumerate(evenly(len(files))):
        share = left / max(planned - position, 1)
        used = _take_step(sample, files[chosen], share if position < planned else left)
        left -= used
        if left < 0.02 * budget:
            break
    order = sorted(range(len(sample.index)), key=lambda i: _index_order(sample.index[i]))
    sample.index = [sample.index[i] for i in order]
    sample.texts = [sample.texts[i] for i in order]
    return sample


def sample_pairs(folder: Path, budget: int) -> RolloutSample:
    """Held-out prompts with their completions before and after training, in logged order."""
    sample = RolloutSample()
    prompts: dict[str, dict[str, list[Row]]] = {}
    for phase in ("before", "after"):
        path = folder / f"{phase}.jsonl"
        for row in read_objects(path) if path.is_file() else ():
            if row is None:
                sample.unreadable += 1
                continue
            sample.logged += 1
            key = str(row.get("prompt_id", row.get("prompt")))
            prompts.setdefault(key, {"before": [], "after": []})[phase].append(row)
    for key, phases in prompts.items():
        rows = phases["before"] + phases["after"]
        verdicts = {name: [finite(r.get("accuracy")) for r in phases[name]] for name in phases}
        text, shown = _fitted(rows, partial(_pair, phases))
        if len(text) > budget:
            break
        budget -= len(text)
        sample.add({"prompt_id": key, **verdicts}, text, shown)
    return sample


def evenly(n: int) -> list[int]:
    """All of `0..n-1`, ordered so that every beginning is spread out: ends first, then middles."""
    order = [0, n - 1][: max(n, 0)] if n != 1 else [0]
    gaps = deque([(0, n - 1)])
    while gaps:
        low, high = gaps.popleft()
        if high - low > 1:
            middle = (low + high) // 2
            order.append(middle)
            gaps.extend([(low, middle), (middle, high)])
    return order


def count_lines(path: Path) -> int:
    """Lines of a file, without parsing them."""
    count, last = 0, b"\n"
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            count += chunk.count(b"\n")
            last = chunk[-1:]
    return count + (last != b"\n")


def page_json(value: object) -> str:
    """JSON that can stand inside a script element: no `<`, `>`, `&`, NaN or lone surrogate."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return re.sub("[<>&\u2028\u2029\ud800-\udfff]", lambda m: f"\\u{ord(m[0]):04x}", text)


def encode_rollout(row: Row, most: int) -> Row:
    """What the page shows of a rollout: at most `most` tokens, numbers rounded.

    A completion that is longer loses its middle; `cut` is `[first token left out, how many]`.
    A column that has one value on all tokens is written as that value.
    """
    shown: Row = {
        "rollout": _plain(row.get("rollout")),
        "reward": rounded(finite(row.get("reward")), 4),
        "accuracy": finite(row.get("accuracy")),
        "finish": _plain(row.get("finish")),
        "terms": _terms(row.get("terms")),
    }
    tokens = row.get("tokens")
    if not isinstance(tokens, list) or not tokens:
        text = str(row.get("completion") or "")
        return shown | _shortened("completion", text, 8 * most)
    n = len(tokens)
    head = n if n <= most else max(1, round(0.7 * most))
    tail = 0 if n <= most else most - head
    if n > most:
        shown["cut"] = [head, n - most]
    shown |= {"length": n, "tokens": [str(t) for t in tokens[:head] + tokens[n - tail :]]}
    parts = {name: 3 for name in row if name.startswith("advantages/")}
    for name, digits in (COLUMNS | parts).items():
        column = row.get(name)
        if isinstance(column, list) and len(column) == n:
            kept = column[:head] + column[n - tail :]
            values = [rounded(finite(value), digits) for value in kept]
            shown[name] = values[0] if len(set(values)) == 1 else values
    return shown


def _take_step(sample: RolloutSample, path: Path, share: float) -> int:
    """Add groups of one step's file while they fit into `share`; at least one. Bytes used."""
    groups: dict[str, list[Row]] = {}
    for row in read_objects(path):
        if row is None:
            sample.unreadable += 1
        else:
            groups.setdefault(str(row.get("group", row.get("prompt_id"))), []).append(row)
    used = 0
    for key in sorted(groups, key=lambda key: not _disagree(groups[key])):
        rows = groups[key]
        text, shown = _fitted(rows, partial(_group, logged=len(rows)))
        if used and used + len(text) > share:
            break
        used += len(text)
        step = step_of(rows[0])
        sample.add(_entry(rows, key, _file_step(path) if step is None else step), text, shown)
    return used


def _fitted(rows: list[Row], write: Callable[[list[Row], int], Row]) -> tuple[str, int]:
    """A group's JSON within `GROUP_BYTES`: fewer rollouts, then fewer tokens of each."""
    kept = [rows[i] for i in sorted(evenly(len(rows))[:GROUP_ROLLOUTS])]
    most = min(MOST_TOKENS, max(map(_length, kept)))
    text = page_json(write(kept, most))
    while len(text) > GROUP_BYTES and most > FEWEST_TOKENS:
        most = max(FEWEST_TOKENS, int(0.9 * most * GROUP_BYTES / len(text)))
        text = page_json(write(kept, most))
    return text, len(kept)


def _group(rows: Sequence[Row], most: int, logged: int) -> Row:
    first = rows[0]
    return {
        **_shortened("prompt", str(first.get("prompt") or ""), PROMPT_CHARACTERS),
        "answer": _plain(first.get("answer")),
        "logged": logged,
        "rollouts": [encode_rollout(row, most) for row in rows],
    }


def _pair(phases: dict[str, list[Row]], kept: Sequence[Row], most: int) -> Row:
    ids = {id(row) for row in kept}
    first = kept[0]
    return {
        **_shortened("prompt", str(first.get("prompt") or ""), PROMPT_CHARACTERS),
        "answer": _plain(first.get("answer")),
        **{
            phase: [encode_rollout(row, most) for row in rows if id(row) in ids]
            for phase, rows in phases.items()
        },
    }


def _entry(rows: Sequence[Row], key: str, step: int) -> Row:
    return {
        "step": step,
        "group": key,
        "prompt_id": _plain(rows[0].get("prompt_id")),
        "verdicts": [finite(row.get("accuracy")) for row in rows],
        "rewards": [rounded(finite(row.get("reward")), 3) for row in rows],
    }


def _disagree(rows: Iterable[Row]) -> bool:
    return len({finite(row.get("reward")) for row in rows}) > 1


def _length(row: Row) -> int:
    """Tokens of a rollout; where they weren't logged, about as many as its text has."""
    tokens = row.get("tokens")
    if isinstance(tokens, list) and tokens:
        return len(tokens)
    return 1 + len(str(row.get("completion") or "")) // 8


def _shortened(name: str, text: str, most: int) -> Row:
    if len(text) <= most:
        return {name: text}
    head = round(0.7 * most)
    return {name: [text[:head], text[head - most :]], f"{name}_cut": len(text) - most}


def _terms(terms: object) -> dict[str, float | int | None]:
    if not isinstance(terms, dict):
        return {}
    return {str(name): rounded(finite(value), 3) for name, value in terms.items()}


def _plain(value: object) -> str | int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    return str(value)


def _file_step(path: Path) -> int:
    digits = re.search(r"\d+", path.stem)
    return int(digits[0]) if digits else 0


def _index_order(entry: Row) -> tuple[int, int, str]:
    key = str(entry["group"])
    return int(entry["step"]), int(key) if key.isdigit() else 0, key
