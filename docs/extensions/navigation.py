"""The sidebar: `NAVIGATION` of `conf.py` as hidden tables of contents of the front page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sphinx.application import Sphinx


def tables_of_contents(navigation: Mapping[str, Sequence[str]]) -> str:
    """One hidden `toctree` for each heading."""
    blocks = []
    for caption, pages in navigation.items():
        names = "\n".join(pages)
        blocks.append(f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{names}\n```\n")
    return "".join(blocks)


def add_to_front_page(app: Sphinx, docname: str, source: list[str]) -> None:
    """Append the tables of contents to the front page's source."""
    if docname == app.config.root_doc:
        source[0] += tables_of_contents(app.config.NAVIGATION)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_config_value("NAVIGATION", {}, "env", dict)
    app.connect("source-read", add_to_front_page)
    return {"parallel_read_safe": True}
