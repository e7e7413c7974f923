"""The watched page over HTTP: current, bounded to its own, closed to foreign pages."""

from __future__ import annotations

import gzip
import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polyopt.cli import main
from polyopt.errors import UserError
from polyopt.watching.command import watch
from polyopt.watching.server import PageServer, serve
from polyopt.watching.snapshots import Snapshots
from tests.report.conftest import write_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", steps=20)


@pytest.fixture
def server(run: Path) -> Iterator[PageServer]:
    with serve(Snapshots(run, every=1e-6), "127.0.0.1", 0) as server:
        server.snapshots._next_look = 0.0
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def ask(
    server: PageServer, path: str, method: str = "GET", headers: dict[str, str] | None = None
) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=30)
    connection.request(method, path, headers=headers or {})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def news(server: PageServer, since: int | None = None) -> dict[str, Any]:
    server.snapshots._next_look = 0.0
    query = "" if since is None else f"?server={server.snapshots.server}&since={since}"
    answer, body = ask(server, f"/news{query}")
    assert answer.status == 200
    found: dict[str, Any] = json.loads(body)
    return found


def append(run: Path, row: dict[str, Any]) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")


def test_the_page_is_the_report_with_a_script_that_asks_for_news(server: PageServer) -> None:
    answer, body = ask(server, "/")
    page = body.decode()
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "connect-src &#x27;self&#x27;" in page
    assert 'id="group-0"' in page
    assert 'id="watch"' in page
    assert "keepAsking()" in page
    assert answer.headers["Cache-Control"] == "no-store"


def test_the_report_file_has_no_such_script(run: Path) -> None:
    main(["report", str(run)])
    page = (run / "report.html").read_text()
    assert "keepAsking" not in page
    assert "connect-src &#x27;none&#x27;" in page


def test_news_bring_steps_as_they_are_logged(server: PageServer, run: Path) -> None:
    first = news(server)
    assert first["data"]["curves"]["steps"][-1] == 20
    assert set(first["texts"]) == set(first["keys"].values())
    nothing = news(server, first["version"])
    assert set(nothing) == {"server", "version", "state"}
    append(run, {"step": 21, "reward/mean": 0.5})
    more = news(server, first["version"])
    assert more["data"]["curves"]["steps"][-1] == 21
    assert more["data"]["curves"]["columns"]["reward/mean"][-1] == 0.5
    assert more["texts"] == {}
    assert more["keys"] == first["keys"]


def test_only_rollouts_that_the_page_lacks_are_sent(server: PageServer, run: Path) -> None:
    first = news(server)
    logged = json.loads((run / "rollouts" / "step-000020.jsonl").read_text().split("\n")[0])
    (run / "rollouts" / "step-000025.jsonl").write_text(json.dumps({**logged, "step": 25}) + "\n")
    more = news(server, first["version"])
    assert len(more["texts"]) == 1
    assert set(more["texts"]) == set(more["keys"].values()) - set(first["keys"].values())


def test_another_servers_version_gets_everything(server: PageServer) -> None:
    version = news(server)["version"]
    _, body = ask(server, f"/news?server=other&since={version}")
    assert json.loads(body)["texts"]


def test_a_run_that_ended_is_said_to_have(server: PageServer) -> None:
    state = news(server)["state"]
    assert state["phase"] == "finished"
    assert state["live"] is False
    assert state["words"] == "finished after step 20"


@pytest.mark.parametrize(
    "path",
    [
        "/run.json",
        "/../run.json",
        "/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/news/../run.json",
        "/report.html",
        "/?/../x/",
        "/news?since=-1",
        "/news?since=1e9",
        "/news?since=" + "9" * 30,
    ],
)
def test_nothing_of_the_disk_is_served(server: PageServer, path: str) -> None:
    answer, body = ask(server, path)
    if path.startswith("/?"):
        assert b"<!doctype html>" in body
        return
    assert answer.status in (400, 404)
    assert b"reasoning_gym" not in body
    assert b"root:" not in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_only_reading_is_allowed(server: PageServer, method: str) -> None:
    answer, _ = ask(server, "/", method)
    assert answer.status == 405
    assert answer.headers["Allow"] == "GET, HEAD"


def test_head_gives_the_headers_alone(server: PageServer) -> None:
    answer, body = ask(server, "/", "HEAD")
    assert answer.status == 200
    assert int(answer.headers["Content-Length"]) > 1000
    assert body == b""


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8642",
        "192.168.1.7",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "a@localhost",
        "",
        "localhost/x",
    ],
)
def test_a_foreign_name_for_this_machine_is_not_answered(server: PageServer, host: str) -> None:
    answer, body = ask(server, "/", headers={"Host": host})
    assert answer.status == 421
    assert b"doctype" not in body
    answer, _ = ask(server, "/news", headers={"Host": host})
    assert answer.status == 421


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:9000", "127.0.0.1:1", "[::1]:8642", "localhost."]
)
def test_this_machines_own_names_are_answered_through_any_tunnel(
    server: PageServer, host: str
) -> None:
    assert ask(server, "/", headers={"Host": host})[0].status == 200


def test_a_request_without_host_is_not_answered(server: PageServer) -> None:
    with socket.create_connection(server.server_address[:2]) as raw:  # type: ignore[arg-type]
        raw.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 421")


def test_long_answers_are_compressed_for_who_takes_it(server: PageServer) -> None:
    answer, body = ask(server, "/news", headers={"Accept-Encoding": "gzip, br"})
    assert answer.headers["Content-Encoding"] == "gzip"
    assert json.loads(gzip.decompress(body))["data"]


def test_without_a_port_the_next_free_one_is_taken(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        monkeypatch.setattr("polyopt.watching.server.PORT", number)
        snapshots = Snapshots(run, every=1)
        with serve(snapshots, "127.0.0.1", None) as server:
            assert server.server_address[1] != number
        with pytest.raises(UserError, match=rf"port {number} \(Address already in use\): choose"):
            serve(snapshots, "127.0.0.1", number)


def test_bad_input_is_named(run: Path, tmp_path: Path) -> None:
    for arguments, message in (
        ({"run": tmp_path / "nowhere"}, r"nowhere is no run folder"),
        ({"run": run, "port": 70000}, r"--port 70000: ports go from"),
        ({"run": run, "every": 0.0}, r"--every 0.0: it must be above 0"),
        ({"run": run, "host": "no such host"}, r"--host no such host: no such address"),
        ({"run": run, "host": "192.0.2.1"}, r"can't listen at 192.0.2.1"),
    ):
        with pytest.raises(UserError, match=message):
            watch(**arguments)  # type: ignore[arg-type]


def test_loopback_is_the_default_and_opening_is_said(run: Path) -> None:
    quiet, said = said_by(run), said_by(run, "--host", "0.0.0.0")
    assert "http://127.0.0.1:" in quiet
    assert "Anyone" not in quiet
    assert "Anyone who can reach this machine can read the run" in said


def said_by(run: Path, *more: str) -> str:
    """What `polyopt watch` prints until it is ended by Ctrl-C, which must be quiet."""
    line = [sys.executable, "-m", "polyopt.cli", "watch", str(run), "--port", "0", *more]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    first = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    rest, errors = process.stdout.read(), process.stderr.read()
    assert process.wait(timeout=60) == 0
    assert errors == ""
    return first + rest
