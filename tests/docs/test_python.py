"""Python blocks and examples run as a reader would run them."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from polyopt.diagnosis import signs
from tests.docs.pages import PAGES, ROOT, Block, blocks, name_of

NOT_RUN = {
    "docs/from-trl.md": "shows TRL's own form, with names for a model and a data set",
    "docs/other-trainers.md": "needs TRL and verl; tests/adapters runs what it shows",
}
"""Pages whose Python blocks are only parsed, and why. They must import what isn't installed."""


def write(block: Block, folder: Path) -> Path:
    """A block as a file, under the name that its first line may give: `# mine.py`."""
    named = re.match(r"# (\w+\.py)\n", block.text)
    path = folder / (named.group(1) if named else f"block{block.line}.py")
    path.write_text(block.text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "page",
    [p for p in PAGES if blocks(p, "python") and name_of(p) not in NOT_RUN],
    ids=name_of,
)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(signs, "_REGISTER", dict(signs._REGISTER))  # a page may add a sign
    for block in blocks(page, "python"):
        runpy.run_path(str(write(block, tmp_path)))


@pytest.mark.parametrize("page", NOT_RUN)
def test_blocks_that_do_not_run_have_a_peer_as_their_reason(page: str) -> None:
    found = blocks(ROOT / page, "python")
    assert found
    for block in found:
        assert re.search(r"\btrl\b|\bverl\b|GRPO", block.text), f"{block} could run: let it"


def test_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from polyopt.cli import main

    monkeypatch.chdir(tmp_path)
    examples = ROOT / "examples"
    runpy.run_path(str(examples / "own_trainer.py"), run_name="__main__")
    runpy.run_path(str(examples / "own_reward.py"))
    expression = f"grpo+{examples / 'own_idea.py'}:curious"
    assert main(["show", expression, "--set", "curious.weight=0.3"]) == 0
