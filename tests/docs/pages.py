"""The pages that people read, and the code blocks on them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        page: Where it stands.
        line: Number of its first line.
        language: The word after the opening fence.
        text: What is between the fences.
    """

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{name_of(self.page)}:{self.line}"


def name_of(page: Path) -> str:
    """A page's path in the repository."""
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, *languages: str) -> list[Block]:
    """The fenced blocks of a page, in order; with `languages` only theirs."""
    found: list[Block] = []
    opened: tuple[int, str] | None = None
    lines = page.read_text(encoding="utf-8").splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        fence = re.match(r"\s*(```+|~~~+)(.*)", line)
        if fence and opened is None:
            opened = number + 1, fence.group(2).strip()
        elif fence and opened is not None:
            start, language = opened
            found.append(Block(page, start, language, "".join(lines[start - 1 : number - 1])))
            opened = None
    assert opened is None, f"{name_of(page)}:{opened}: a block without an end"
    return [block for block in found if not languages or block.language in languages]


def table_rows(page: Path) -> list[list[str]]:
    """The cells of every row of a page's tables, without headings."""
    rows: list[list[str]] = []
    lines = page.read_text(encoding="utf-8").splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("|") and not _rule(line) and not _rule(following):
            cells = re.split(r"(?<!\\)\|", line)[1:-1]
            rows.append([cell.strip() for cell in cells])
    return rows


def _rule(line: str) -> bool:
    return line.startswith("|") and set(line) <= set("|-: ")
