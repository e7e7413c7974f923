"""`polyopt doctor`: findings of a run, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from polyopt.diagnosis.evidence import Evidence, read_evidence
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
    first, last = run.steps()
    out.print(
        f"{path}: steps {first} to {last}, {len(run.evals)} evaluations, {len(run.rollouts)} "
        f"logged rollouts, {len(all_signs())} signs",
        style="dim",
        markup=False,
    )
    for name, count in run.unreadable.items():
        out.print(f"{name}: {count} unreadable lines left out", style="dim", markup=False)
    for finding in findings:
        out.print(_block(finding, next_run(run, finding)))
    if not findings:
        out.print("nothing found", style="green")


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
