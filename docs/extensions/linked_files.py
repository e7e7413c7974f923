"""Links to files outside `docs/` (examples, README, source): each such file becomes a page.

The site so needs no address of a repository, and shows the very files that it was built from.
"""

from __future__ import annotations

import html
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

FOLDER = "files"


def page_name(app: Sphinx, path: str) -> str:
    """Name of the page that shows a file, from its path relative to `docs/`."""
    repository = Path(app.srcdir).parent
    return f"{FOLDER}/{(Path(app.srcdir) / path).resolve().relative_to(repository).as_posix()}"


def mark_outside_links(app: Sphinx, docname: str, source: list[str]) -> None:
    """Tell MyST that what lies outside `docs/` is a file, whatever its name ends in."""
    source[0] = source[0].replace("](../", "](path:../")


def point_to_pages(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Turn MyST's download links into links to the pages of the files."""
    for node in list(doctree.findall(addnodes.download_reference)):
        target = page_name(app, app.env.relfn2path(node["reftarget"], docname)[0])
        address = app.builder.get_relative_uri(docname, target)
        node.replace_self(nodes.reference("", "", *node.children, refuri=address, internal=True))


def keep_from_downloads(app: Sphinx, env: BuildEnvironment) -> None:
    """Note the linked files, which are shown and so needn't be copied once more as downloads."""
    env.linked_files = list(env.dlfiles)
    env.dlfiles.clear()


def file_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """A page for each linked file: its path as title, its text with highlighting."""
    for path in app.env.linked_files:
        name = page_name(app, path)
        title = name.removeprefix(f"{FOLDER}/")
        text = (Path(app.srcdir) / path).read_text(encoding="utf-8")
        code = highlight(text, get_lexer_for_filename(path), HtmlFormatter())
        body = f"<h1>{html.escape(title)}</h1>\n{code}"
        yield name, {"title": title, "body": body}, "page.html"


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", mark_outside_links)
    app.connect("env-updated", keep_from_downloads)
    app.connect("doctree-resolved", point_to_pages)
    app.connect("html-collect-pages", file_pages)
    return {"parallel_read_safe": True}
