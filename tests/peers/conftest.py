"""Prints how close the agreement was; in one process only (`-n 0`), as `make peers` runs it."""

from __future__ import annotations

import pytest

from tests.peers.agreement import lines


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The largest error of each comparison that ran."""
    if table := lines():
        terminalreporter.section("agreement with the peers: largest error")
        terminalreporter.write_line("\n".join(table))
