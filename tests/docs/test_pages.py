"""Every page: links lead somewhere, blocks are of a kind that is tested, nothing is left out."""

from __future__ import annotations

import functools
import json
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import DOCS, PAGES, ROOT, Block, blocks, name_of, table_rows

PARSERS: dict[str, Callable[[str], Any]] = {
    "python": lambda text: compile(text, "block", "exec"),
    "json": json.loads,
    "toml": tomllib.loads,
    "bash": lambda text: subprocess.run(["bash", "-n"], input=text, text=True, check=True),
    "text": str,
}
"""Languages that a block may have. `bash` and `python` also run (see the other tests here)."""

ALL_BLOCKS = [block for page in PAGES for block in blocks(page)]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_are_of_a_known_language_and_parse(page: Path) -> None:
    for block in blocks(page):
        assert block.language in PARSERS, f"{block}: no test for {block.language!r} blocks"
        PARSERS[block.language](block.text)


def looks_like_code(block: Block) -> bool:
    return re.match(r"(from \w|import \w|polyopt |\$ |pip |python)", block.text) is not None


def test_code_does_not_hide_in_text_blocks() -> None:
    hidden = [str(b) for b in ALL_BLOCKS if b.language == "text" and looks_like_code(b)]
    assert not hidden, f"make these python or bash, so that they are tested: {hidden}"


@functools.cache
def anchors_of(page: Path) -> set[str]:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    found: dict[str, int] = {}
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        plain = re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        found[f"{plain}-{found[plain]}" if plain in found else plain] = 1
    return set(found)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for path, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", text):
        if path.startswith("http"):
            continue
        target = page.parent / path if path else page
        assert target.exists(), f"{name_of(page)}: {path}"
        if anchor:
            assert anchor in anchors_of(target), f"{name_of(page)}: {path}#{anchor}"


def test_every_page_is_in_the_navigation_and_the_other_way_round() -> None:
    navigation = runpy.run_path(str(DOCS / "conf.py"))["NAVIGATION"]
    listed = [page for pages in navigation.values() for page in pages]
    there = {page.stem for page in DOCS.glob("*.md")} - {"index"}
    assert sorted(listed) == sorted(there), "docs/conf.py: NAVIGATION lists every page once"


def test_generated_pages_are_current() -> None:
    line = [sys.executable, str(ROOT / "scripts" / "make_reference.py"), "--check"]
    found = subprocess.run(line, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + " run python scripts/make_reference.py"


def test_the_charts_that_a_page_explains_are_those_of_the_report() -> None:
    script = (ROOT / "src/polyopt/report/page/curves.js").read_text(encoding="utf-8")
    drawn = set(re.findall(r'title: "([^"]+)"', script))
    explained = [row[0] for row in table_rows(DOCS / "report.md") if row[0][0].isupper()]
    assert len(explained) > 15
    assert not set(explained) - drawn


def test_the_ways_to_the_other_form_exist() -> None:
    """Every `--set` and every expression in the last column of paper-vs-code.md builds."""
    from polyopt.errors import RecipeError
    from polyopt.ideas import build, load_catalog

    failures = []
    for method, *_, other in table_rows(DOCS / "paper-vs-code.md"):
        found = re.findall(r"--set ([\w.\-]+)=([\w.\-+]+)(?=[`\s])", other)
        settings = {path: value for path, value in found if value.strip(".")}
        words = [method.split(" ")[0], *re.findall(r"[\w+\-]+", other), "grpo"]
        reasons = []
        for base in [word for word in words if word in load_catalog()]:
            try:
                build(base, settings)
                break
            except RecipeError as error:
                reasons.append(f"{method}: {error}")
        else:
            failures += reasons
    assert not failures, "\n".join(failures)
