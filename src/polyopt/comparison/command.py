"""`polyopt compare`: from the options of the command line to a comparison."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from polyopt.errors import UserError


def run_command(options: argparse.Namespace, arguments: Mapping[str, Any]) -> int:
    """Run a matrix, or compare the runs given; returns the exit code.

    Args:
        options: The parsed command line.
        arguments: What the same options mean to `polyopt.train`.
    """
    if options.runs:
        return _compare_runs(options)
    if not options.expressions:
        raise UserError(
            "`polyopt compare` needs expressions such as grpo dapo grpo+ktae, or --runs RUN RUN."
        )
    for name in ("model", "task"):
        if not getattr(options, name):
            raise UserError(f"`polyopt compare` needs --{name} (see polyopt compare --help).")
    from polyopt.comparison.compare import compare

    own = {"model", "task", "recipe", "seed", "run", "quiet"}
    first = options.seed or 0
    done = compare(
        options.model,
        options.task,
        options.expressions,
        seeds=range(first, first + options.seeds),
        folder=options.out,
        jobs=options.jobs,
        **{name: value for name, value in arguments.items() if name not in own},
    )
    return 1 if done.summary.failures else 0


def _compare_runs(options: argparse.Namespace) -> int:
    if options.expressions:
        raise UserError(
            f"--runs compares runs that are there; {' '.join(options.expressions)} would be "
            "trained anew. Give one or the other."
        )
    for name in ("model", "task", "steps", "seed", "jobs"):
        if getattr(options, name) is not None:
            raise UserError(f"--{name} has no meaning with --runs: these runs are done.")
    from polyopt.comparison.compare import compare_runs

    compare_runs(options.runs, options.out)
    return 0
