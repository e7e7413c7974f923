"""The watched page in a real browser: it updates in place and keeps what the reader chose."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from polyopt.watching.server import PageServer, serve
from polyopt.watching.snapshots import Snapshot, Snapshots
from tests.report.conftest import write_run
from tests.report.test_report_in_browser import BROWSER, FLAGS, drawn_only

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no chromium (apt-get install chromium)"),
]


class Staged(Snapshots):
    """A run that goes on by one act whenever the page asks."""

    def __init__(self, run: Path, acts: list[Callable[[], None]]) -> None:
        super().__init__(run, every=0.5)
        self.acts = acts

    def newest(self) -> Snapshot:
        """The run after one more act."""
        if self.acts:
            self.acts.pop(0)()
        self._next_look = 0.0
        return super().newest()


@contextmanager
def watched(run: Path, acts: list[Callable[[], None]]) -> Iterator[PageServer]:
    with serve(Staged(run, acts), "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def opened(server: PageServer, folder: Path, hash: str = "", budget: int = 6000) -> str:
    """The document after a while; fails if the browser complains about anything."""
    profile = folder / "browser-profile"
    command = [str(BROWSER), *FLAGS, f"--virtual-time-budget={budget}"]
    command += [f"--user-data-dir={profile}", "--dump-dom", server.address + hash]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert not complaints, complaints
    return done.stdout


def append(run: Path, row: dict[str, object]) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")


def add_rollouts(run: Path, step: int) -> None:
    """A further file of rollouts, which a page that follows would open."""
    text = (run / "rollouts" / "step-000020.jsonl").read_text()
    rows = [{**json.loads(line), "step": step} for line in text.split("\n") if line]
    path = run / "rollouts" / f"step-{step:06d}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_new_steps_and_rollouts_appear_without_a_reload(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=20)
    acts = [lambda: None, lambda: append(run, {"step": 21, "reward/mean": 0.123}),
            lambda: add_rollouts(run, 25)]  # fmt: skip
    with watched(run, acts) as server:
        page = drawn_only(opened(server, tmp_path))
    assert "21 of" in page or "21 steps" in page
    assert "<output>step 25</output>" in page
    assert page.count('<figure class="chart">') == page.count('class="plot"')
    assert "finished after step 21" in page
    assert "Served by polyopt watch" in page
    assert re.search(r'<link|src="http', page) is None


def test_the_group_and_colour_of_the_address_stay(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=20)
    acts = [lambda: None, lambda: add_rollouts(run, 25), lambda: append(run, {"step": 21})]
    with watched(run, acts) as server:
        page = drawn_only(opened(server, tmp_path, "#group=10/1&colour=entropy&theme=dark"))
    assert "<output>step 10</output>" in page
    assert re.search(r'aria-pressed="true">entropy', page)
    assert 'data-theme="dark"' in page


def test_a_run_is_watched_from_before_its_first_step(tmp_path: Path) -> None:
    source, run = write_run(tmp_path / "source", steps=20), tmp_path / "run"
    (run / "rollouts").mkdir(parents=True)
    (run / "run.lock").touch()

    def begin() -> None:
        shutil.copy(source / "run.json", run)

    def go_on() -> None:
        shutil.copytree(source, run, dirs_exist_ok=True)

    with watched(run, [lambda: None, begin, go_on]) as server:
        page = drawn_only(opened(server, tmp_path))
    for heading in ("Learning curves", "Rollouts", "Time", "Pipeline"):
        assert re.search(f"<h[23]>{heading}</h", page), heading
        assert f">{heading}</a>" in page
    assert "No training step has been logged" not in page
    assert "<h1>dapo+ktae</h1>" in page


def test_a_server_that_is_gone_is_said(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=20)

    def fail() -> None:
        raise ConnectionError

    acts: list[Callable[[], None]] = [lambda: None, lambda: None, *[fail] * 50]
    with watched(run, acts) as server:
        command = [str(BROWSER), *FLAGS, "--virtual-time-budget=5000"]
        command += [f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", server.address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)
    assert "no answer from polyopt watch" in drawn_only(done.stdout)
