"""The benchmarks against TRL in their quick shape: both sides run and do the same work."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="TRL isn't installed: `make peers`")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import memory
import step


def quick(module: Any, out: Path, workload: str) -> list[dict[str, Any]]:
    module.main(["--quick", "--repeats", "1", "--out", str(out), "--workload", workload])
    return [json.loads(line) for line in out.read_text().splitlines()]


@pytest.mark.parametrize("workload", ["b", "c"])
def test_step_compares_with_trl(workload: str, tmp_path: Path) -> None:
    (line,) = quick(step, tmp_path / "lines", workload)
    assert line["other"]["name"].startswith("trl ")
    assert line["note"] == ""
    ratio = line["other"]["median"] / line["polyopt"]["median"]
    assert line["ratio"] == pytest.approx(ratio, rel=1e-2)


def test_memory_compares_with_trl_with_and_without_recomputing(tmp_path: Path) -> None:
    found = quick(memory, tmp_path / "lines", "a")
    assert [line["workload"] for line in found] == ["a against trl", "a against trl-checkpointing"]
    assert all(line["ratio"] > 0.5 for line in found)
