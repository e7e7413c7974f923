"""README and docs: code blocks run, links lead somewhere, generated pages are current."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize(
    "page", [p for p in PAGES if blocks(p, "python")], ids=lambda p: p.relative_to(ROOT).as_posix()
)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number, block in enumerate(blocks(page, "python")):
        named = re.match(r"# (\w+\.py)\n", block)
        path = tmp_path / (named.group(1) if named else f"block{number}.py")
        path.write_text(block)
        runpy.run_path(str(path))


def polyopt_lines(page: Path) -> list[str]:
    """Commands of a page's bash blocks that print what is there, so need no training."""
    joined = "\n".join(blocks(page, "bash")).replace("\\\n", " ")
    lines = [line.split("#")[0].strip() for line in joined.splitlines()]
    return [line for line in lines if line.startswith(("polyopt show", "polyopt recipes"))]


def test_show_lines_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from polyopt.cli import main

    monkeypatch.chdir(tmp_path)
    readme = ROOT / "README.md"
    for block in blocks(readme, "python"):
        if block.startswith("# mine.py"):
            (tmp_path / "mine.py").write_text(block)
    lines = polyopt_lines(readme)
    assert lines
    for line in lines:
        assert main(line.split()[1:]) == 0, line


def test_train_lines_name_only_options_ideas_and_rewards_that_exist(tmp_path: Path) -> None:
    from polyopt.command_line import build_parser
    from polyopt.ideas import find_idea, names_in

    for page in PAGES:
        joined = "\n".join(blocks(page, "bash")).replace("\\\n", " ")
        for line in joined.splitlines():
            words = line.split("#")[0].split()
            if words[:1] == ["polyopt"] and "RUN" not in words:
                options = build_parser().parse_args(words[1:])
                for name in names_in(getattr(options, "expression", None) or "grpo"):
                    if ".py:" not in name:
                        find_idea(name)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_relative_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    anchors = {
        re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in text.splitlines()
        if line.startswith("#")
    }
    for target in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", text):
        path, anchor = target
        if path.startswith("http"):
            continue
        if path:
            assert (page.parent / path).exists(), f"{page.name}: {path}"
        elif anchor:
            assert anchor in anchors, f"{page.name}: #{anchor}"


def test_generated_pages_are_current() -> None:
    line = [sys.executable, str(ROOT / "scripts" / "make_reference.py"), "--check"]
    found = subprocess.run(line, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + " run python scripts/make_reference.py"


def test_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from polyopt.cli import main

    monkeypatch.chdir(tmp_path)
    examples = ROOT / "examples"
    runpy.run_path(str(examples / "own_trainer.py"), run_name="__main__")
    runpy.run_path(str(examples / "own_reward.py"))
    expression = f"grpo+{examples / 'own_idea.py'}:curious"
    assert main(["show", expression, "--set", "curious.weight=0.3"]) == 0


def table_rows(page: str) -> list[list[str]]:
    lines = (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def test_the_ways_to_the_other_form_exist() -> None:
    """Every `--set` and every expression in the last column of paper-vs-code.md builds."""
    from polyopt.errors import RecipeError
    from polyopt.ideas import build, load_catalog

    failures = []
    for method, *_, other in table_rows("paper-vs-code.md"):
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
