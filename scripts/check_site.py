"""Check the built documentation: every link leads somewhere, and no page asks the network.

Run `python scripts/check_site.py site`. Sphinx has checked the links that it knows; this reads the
pages as a browser does, so it also sees links and pictures that come from raw HTML, from the theme
or from generated pages.
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src"}
"""What a browser loads without being asked to."""
LOADED_BY_CSS = re.compile(r"(?:url\(|@import)\s*[\"']?(https?:)?//")


class Page(HTMLParser):
    """The anchors, links and loaded files of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = {"", "top"}
        self.links: set[str] = set()
        self.loads: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.add(given["href"])
        if tag == "link" and given.get("rel") != "canonical":
            self.loads.add(given.get("href", ""))
        if tag in LOADED and LOADED[tag] in given:
            self.loads.add(given[LOADED[tag]])


def problems(site: Path) -> list[str]:
    """What is wrong with a built site, one line each."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    found = [] if site / "index.html" in pages else [f"{site}: no index.html"]
    for path, page in sorted(pages.items()):
        where = path.relative_to(site)
        found += [f"{where}: loads {url}" for url in sorted(page.loads) if _outside(url)]
        for url in sorted(page.links | page.loads):
            if not _outside(url) and (reason := _dead(path, url, pages)):
                found.append(f"{where}: {url}: {reason}")
    for sheet in sorted(site.rglob("*.css")):
        if LOADED_BY_CSS.search(sheet.read_text(encoding="utf-8")):
            found.append(f"{sheet.relative_to(site)}: loads from the network")
    return found


def _outside(url: str) -> bool:
    parts = urlsplit(url)
    return bool(parts.netloc) or parts.scheme in ("http", "https")


def _dead(path: Path, url: str, pages: dict[Path, Page]) -> str | None:
    """Why a link within the site leads nowhere; None if it leads somewhere."""
    parts = urlsplit(url)
    if parts.scheme in ("data", "mailto"):
        return None
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path.resolve()
    if not target.is_file():
        return "no such file"
    known = next((page for other, page in pages.items() if other.resolve() == target), None)
    if known is not None and unquote(parts.fragment) not in known.anchors:
        return "no such anchor"
    return None


def main() -> int:
    """Print what is wrong; 1 if something is."""
    if len(sys.argv) != 2:
        print("usage: python scripts/check_site.py FOLDER")
        return 2
    site = Path(sys.argv[1])
    found = problems(site)
    print("\n".join(found) or f"{site}/index.html: links lead somewhere, nothing from the network")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
