"""The report in a real browser: it draws itself, runs no foreign script, and opens fast."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from polyopt.report.html import write_report

MakeRun = Callable[..., Path]
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--enable-logging=stderr", "--window-size=1280,900",
)  # fmt: skip

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no chromium (apt-get install chromium)"),
]


def opened(page: Path, hash: str = "", settle: bool = True) -> str:
    """The document once drawn; fails if the browser complains about anything.

    `settle` lets the page's clock run ahead until all is drawn; without it the clock is real.
    """
    profile = page.parent / "browser-profile"
    ahead = ["--virtual-time-budget=2000"] if settle else []
    command = [str(BROWSER), *FLAGS, *ahead, f"--user-data-dir={profile}", "--dump-dom"]
    done = subprocess.run(
        [*command, f"{page.resolve().as_uri()}{hash}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert not complaints, complaints
    return done.stdout


def drawn_only(document: str) -> str:
    """The document without scripts and styles: what is there to see."""
    return re.sub(r"<(script|style).*?</\1>", "", document, flags=re.S)


def test_every_section_is_drawn(run: Path) -> None:
    page = drawn_only(opened(write_report(run)))
    for heading in ("Learning curves", "Rollouts", "Time", "Pipeline", "Batch arithmetic"):
        assert re.search(f"<h[23]>{heading}</h", page), heading
    assert page.count('<figure class="chart">') >= 17
    assert page.count('class="smooth"') >= 20
    assert "all 312 logged rollouts" in page
    assert 'href="https://arxiv.org/abs/2505.16826"' in page


def test_a_group_is_opened_by_the_address(run: Path) -> None:
    page = drawn_only(opened(write_report(run), "#group=30/1&colour=entropy"))
    assert "<output>step 30</output>" in page
    assert re.search(r'aria-selected="true" title="prompt chain_sum-511"', page)
    assert re.search(r'aria-pressed="true">entropy', page)
    assert page.count('<article class="card') == 8 + 2
    assert page.count("var(--entropy)") > 100
    assert "var(--gain)" not in page


def test_tokens_are_coloured_by_their_advantage(run: Path) -> None:
    page = drawn_only(opened(write_report(run)))
    assert page.count("var(--gain)") > 50
    assert page.count("var(--blame)") > 50
    assert 'class="t forced"' in page


@pytest.mark.parametrize(
    ("colour", "label", "scale"),
    [
        ("weight", "weight in the loss", r"≥ \+0\.000\d+|≥ \+\de-4|≥ \+\d\.\de-4"),
        ("ratio", "ratio", r"≥ \xd71\.\d+"),
        ("advantages/key-tokens", "key-tokens", r"≥ \+\d"),
    ],
)
def test_tokens_are_coloured_by_what_the_address_names(
    run: Path, colour: str, label: str, scale: str
) -> None:
    page = drawn_only(opened(write_report(run), f"#group=30/1&colour={colour}"))
    assert f'aria-pressed="true">{label}</button>' in page
    assert re.search(scale, page)
    assert min(page.count("var(--gain)"), page.count("var(--blame)")) > 30


def test_hovering_tells_every_number_of_a_token(run: Path, tmp_path: Path) -> None:
    page = tmp_path / "hovered.html"
    hover = "document.querySelector('.t').dispatchEvent(new Event('pointerover',{bubbles:true}))"
    text = re.sub(r"script-src 'sha256[^']*'", "script-src 'unsafe-inline'", html_of(run))
    page.write_text(text.replace("</body>", f"<script>{hover}</script></body>"))
    (tip,) = re.findall(r'<div id="tip".*?</div>', opened(page), flags=re.S)
    for name in (
        "token", "advantage", "… of key-tokens", "weight in the loss", "importance ratio",
        "probability", "log-probability", "entropy",
    ):  # fmt: skip
        assert f"<dt>{name}</dt>" in tip


def html_of(run: Path) -> str:
    return html.unescape(write_report(run).read_text())


def test_distributions_are_drawn_as_bands(run: Path) -> None:
    page = drawn_only(opened(write_report(run)))
    for title in ("Importance ratio", "Sampler mismatch"):
        (figure,) = re.findall(rf"<figure[^>]*><figcaption[^>]*><h4>{title}.*?</figure>", page)
        assert figure.count('class="spread"') == 2
        assert re.search(r"1\u201399% <b>\S+ to \S+</b>", figure)


def test_ratios_that_are_1_by_construction_are_said_and_not_drawn(run: Path) -> None:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    still = {name: 1.0 for name in rows[0] if name.startswith("ratio/")}
    clipped = {"clip/high": 0.0, "clip/low": 0.0}
    lines = [json.dumps(row | still | clipped) + "\n" for row in rows]
    (run / "metrics.jsonl").write_text("".join(lines))
    page = drawn_only(opened(write_report(run)))
    assert "as each batch took one optimizer step: importance ratio." in page
    assert "0 at every step: clipped tokens" in page
    assert "<h4>Importance ratio" not in page


def test_user_text_is_shown_and_not_run(make_run: MakeRun, tmp_path: Path) -> None:
    evil = "</script><img src=x onerror=\"document.title='pwned'\"><script>alert(1)</script>"
    page = opened(write_report(make_run(tmp_path / "run", steps=10, text=evil)))
    assert "<title>pwned" not in page
    assert "<img" not in page
    assert "&lt;img src=x onerror=" in drawn_only(page)


def test_a_run_with_hardly_anything_is_drawn(run: Path) -> None:
    shutil.rmtree(run / "rollouts")
    (run / "evals.jsonl").unlink()
    (run / "run.json").unlink()
    (run / "metrics.jsonl").write_text('{"step": 1, "reward/mean": 0.5}\n{"step": 2}\n')
    page = drawn_only(opened(write_report(run)))
    assert page.count('<figure class="chart">') == 1
    assert "Not logged in this run:" in page


def test_a_long_run_opens_within_two_seconds(make_run: MakeRun, tmp_path: Path) -> None:
    """2,000 steps, 50,000 logged rollouts; on a machine that does other work, as much longer."""
    run = make_run(tmp_path / "run", steps=2000, every=10, groups=25, rollouts=10, tokens=16)
    report = write_report(run)
    assert 4_000_000 < report.stat().st_size < 8_000_000
    pages = [opened(report, settle=False) for _ in range(3)]
    ready = [re.search(r'data-ready="(\d+)"', page) for page in pages]
    busy = os.getloadavg()[0] / len(os.sched_getaffinity(0))
    assert min(int(found[1]) for found in ready if found) < 2000 * max(1.0, busy)
    assert re.search(r"showing [\d,]+ of 50,250 logged rollouts", drawn_only(pages[0]))
