"""The site: broken links fail its build, and nothing on it comes from the network."""

from __future__ import annotations

import runpy
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT

problems: Callable[[Path], list[str]] = runpy.run_path(str(ROOT / "scripts" / "check_site.py"))[
    "problems"
]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ('<a href="other.html">x</a><a href="other.html#there">x</a><a href="#here">x</a>', None),
        ('<a href="https://arxiv.org/abs/1707.06347">x</a><img src="data:image/png;,">', None),
        ('<a href="missing.html">x</a>', "index.html: missing.html: no such file"),
        ('<a href="other.html#nowhere">x</a>', "index.html: other.html#nowhere: no such anchor"),
        ('<img src="missing.png">', "index.html: missing.png: no such file"),
        ('<script src="https://cdn.example/x.js"></script>', "loads https://cdn.example/x.js"),
        ('<link rel="stylesheet" href="//fonts.example/f.css">', "loads //fonts.example/f.css"),
    ],
)
def test_what_a_browser_would_miss_is_found(body: str, problem: str | None, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(f'<h1 id="here">x</h1>{body}')
    (tmp_path / "other.html").write_text('<h1 id="there">x</h1>')
    found = problems(tmp_path)
    assert bool(found) == bool(problem)
    assert problem is None or problem in found[0]


def test_a_style_sheet_that_asks_the_network_is_found(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("x")
    (tmp_path / "site.css").write_text("@import url('https://fonts.example/f.css');")
    assert problems(tmp_path) == ["site.css: loads from the network"]


def build(folder: Path, page: str) -> int:
    """Build a site of one page with the real configuration; Sphinx's exit code."""
    pytest.importorskip("furo")
    pytest.importorskip("myst_parser")
    pytest.importorskip("latex2mathml")
    from sphinx.cmd.build import main

    docs = folder / "docs"
    shutil.copytree(DOCS / "extensions", docs / "extensions")
    configuration = (DOCS / "conf.py").read_text()
    (docs / "conf.py").write_text(f"{configuration}\nNAVIGATION = {{'All': ['page']}}\n")
    (docs / "index.md").write_text("# Front\n")
    (docs / "page.md").write_text(page)
    (folder / "code.py").write_text("answer = 42\n")
    (folder / "NOTES.md").write_text("# Notes\n")
    options = ["--quiet", "--fail-on-warning", "--keep-going", "--nitpicky", "--fresh-env"]
    return int(main([*options, str(docs), str(folder / "site")]))


def test_files_outside_the_docs_become_pages_and_formulas_mathml(tmp_path: Path) -> None:
    page = "# Page\n\n[code](../code.py), [notes](../NOTES.md), $x^2$.\n\n$$y = x$$\n"
    assert build(tmp_path, page) == 0
    site = tmp_path / "site"
    text = (site / "page.html").read_text()
    assert 'href="files/code.py.html"' in text
    assert 'href="files/NOTES.md.html"' in text
    assert text.count("<math") == 2
    assert "answer" in (site / "files" / "code.py.html").read_text()
    assert not problems(site)


@pytest.mark.parametrize(
    "link", ["[x](missing.md)", "[x](#nowhere)", "[x](../missing.py)", "![x](missing.png)"]
)
def test_a_broken_link_fails_the_build(link: str, tmp_path: Path) -> None:
    assert build(tmp_path, f"# Page\n\n{link}\n") != 0
