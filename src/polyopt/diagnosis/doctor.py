"""`polyopt doctor`: findings of a run, for people and for programs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from polyopt.diagnosis.evidence import WINDOW, Evidence, read_evidence
from polyopt.diagnosis.next_run import next_run
from polyopt.diagnosis.signs import Finding, all_signs, diagnose

COLOURS = {"serious": "bold red", "likely": "yellow", "hint": "dim"}


def doctor(path: Path, *, as_json: bool = False, console: Console | None = None) -> int:
    """Print what is wrong with a run, the worst first.

    Returns:
        1 if a finding is serious (confidence of at least 0.8), else 0.

    Raises:
        UserError: `path` is no run folder.
    """
    run = read_evidence(path)
    findings = diagnose(run)
    if as_json:
        print(json.dumps(as_dict(path, run, findings), indent=1))
    else:
        print_findings(path, run, findings, console or Console(highlight=False))
    return int(any(finding.level == "serious" for finding in findings))


def as_dict(path: Path, run: Evidence, findings: Sequence[Finding]) -> dict[str, object]:
    """What `--json` prints."""
    return {
        "run": str(path),
        "steps": list(run.steps()),
        "rollouts": len(run.rollouts),
        "unreadable": dict(run.unreadable),
        "findings": [f.as_json() | {"next": next_run(run, f)} for f in findings],
    }


def print_findings(path: Path, run: Evidence, findings: Sequence[Finding], out: Console) -> None:
    """Findings with evidence, ideas and remedy."""
    out.print(Text(str(path), style="bold"), soft_wrap=True)
    for line in about_run(run):
        out.print(Text(line, style="dim"), soft_wrap=True)
    for finding in findings:
        out.print(_block(finding, next_run(run, finding)))
    out.print(_summary(findings))


def about_run(run: Evidence) -> list[str]:
    """What was looked at, and what was too little to look at, in lines."""
    first, last = run.steps()
    planned = run.about.get("steps")
    lines = [
        f"steps {first} to {last}{f' of {planned}' if planned else ''}, {len(run.evals)} "
        f"evaluations, {len(run.rollouts)} logged rollouts, {len(all_signs())} signs"
    ]
    if not run.metrics:
        lines[0] = "no training step is logged yet, so few signs can show"
    elif len(run.metrics) < WINDOW:
        lines.append(f"signs of change need {WINDOW} steps, so they can't show yet")
    return lines + [f"{name}: {n} unreadable lines left out" for name, n in run.unreadable.items()]


def _summary(findings: Sequence[Finding]) -> Text:
    if not findings:
        return Text("nothing found", style="green")
    counts = Counter(finding.level for finding in findings)
    words = ", ".join(f"{n} {level}" for level in COLOURS if (n := counts[level]))
    return Text(f"\n{words}", style="dim")


def _block(finding: Finding, command: str) -> RenderableType:
    symptom = finding.symptom
    head = Text("\n")
    head.append(f"{finding.level} ({symptom.confidence:.0%})  ", style=COLOURS[finding.level])
    head.append(finding.name, style="bold")
    head.append(f"  steps {symptom.steps[0]} to {symptom.steps[1]}", style="dim")
    numbers = ", ".join(f"{name} {value:.4g}" for name, value in symptom.evidence.items())
    grid = Table.grid(padding=(0, 1))
    for label, text in (
        ("what", symptom.message),
        ("evidence", numbers),
        ("ideas", ", ".join(finding.ideas)),
        ("try", finding.remedy),
        ("flag", "" if command else " or ".join(finding.flags[:1])),
        ("next run", command),
    ):
        if text:
            grid.add_row(Text(f"  {label}:", style="dim"), Text(text))
    return Group(head, grid)
