"""`PageServer`: the page and its news over HTTP, for whoever may reach it."""

from __future__ import annotations

import errno
import gzip
import ipaddress
import re
import socket
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from polyopt import __version__
from polyopt.errors import UserError
from polyopt.report.html import SCRIPTS, page_html
from polyopt.watching.snapshots import Snapshots

PORT = 8642
PORTS_TRIED = 20
IDLE_SECONDS = 30
LEAST_ZIPPED = 2000


class PageServer(ThreadingHTTPServer):
    """Serves `/`, the page, and `/news`, what it asks for; nothing of the disk.

    Args:
        snapshots: The run.
        host: Address to listen at.
        port: Port; 0 takes any that is free.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, snapshots: Snapshots, host: str, port: int) -> None:
        self.snapshots = snapshots
        self.host = host
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self.address_family = family
        super().__init__((str(address[0]), port), _Handler)

    @property
    def address(self) -> str:
        """Where a browser finds the page."""
        everywhere = ipaddress.ip_address(_bare(self.server_address[0])).is_unspecified
        host = socket.gethostname() if everywhere else self.host
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{self.server_address[1]}/"

    @property
    def open_to_others(self) -> bool:
        """Whether other machines may reach it."""
        return not ipaddress.ip_address(_bare(self.server_address[0])).is_loopback

    def answers_to(self, host: str | None) -> bool:
        """Whether a request's Host is this server's, so that no foreign page is behind it.

        A page whose name its owner suddenly resolves to this machine (DNS rebinding) sends that
        name. Addresses can't be rebound; of names only ours are answered.
        """
        name = _host_name(host)
        if name is None:
            return False
        if name in ("localhost", self.host.lower()):
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return self.open_to_others and name in _own_names()
        return self.open_to_others or address.is_loopback

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that left in the middle of an answer is no error."""


def serve(snapshots: Snapshots, host: str, port: int | None) -> PageServer:
    """A server at `port`; without one at 8642 or the next that is free.

    Raises:
        UserError: The address can't be listened at.
    """
    tried = [port] if port is not None else [*range(PORT, PORT + PORTS_TRIED), 0]
    for number in tried:
        try:
            return PageServer(snapshots, host, number)
        except socket.gaierror:
            raise UserError(
                f"--host {host}: no such address. 127.0.0.1 (the default) serves this machine "
                "alone, 0.0.0.0 everyone who can reach it."
            ) from None
        except OSError as error:
            if port is not None or not _taken(error):
                raise UserError(
                    f"can't listen at {host}, port {number} ({error.strerror}): choose another "
                    "--port (0: any free one), or an address of this machine for --host."
                ) from None
    raise AssertionError("port 0 is never taken")


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    protocol_version = "HTTP/1.1"
    server_version = f"polyopt/{__version__}"
    sys_version = ""
    timeout = IDLE_SECONDS

    def do_GET(self) -> None:
        """The page, its news, or why not."""
        parts = urlsplit(self.path)
        if not self.server.answers_to(self.headers.get("Host")):
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, "This server isn't called that.")
        elif parts.path == "/":
            self._page()
        elif parts.path == "/news":
            self._news(parse_qs(parts.query))
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "Only / is here.")

    do_HEAD = do_GET

    def refuse_method(self) -> None:
        """Nothing can be changed from the page."""
        self.close_connection = True
        self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "Only GET and HEAD.", {"Allow": "GET, HEAD"})

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = refuse_method

    def _page(self) -> None:
        snapshots = self.server.snapshots
        snapshot = snapshots.newest()
        texts = {**snapshot.texts, "watch": snapshots.start_of_page(snapshot)}
        scripts = (*SCRIPTS, "live.js")
        page = page_html(snapshot.data, texts, scripts=scripts, requests="'self'")
        self._send(page, "text/html; charset=utf-8")

    def _news(self, query: dict[str, list[str]]) -> None:
        since = query.get("since", ["none"])[0]
        if not re.fullmatch(r"\d{1,18}|none", since):
            self._refuse(HTTPStatus.BAD_REQUEST, "since must be a version.")
            return
        snapshots = self.server.snapshots
        same = query.get("server", [""])[0] == snapshots.server
        known = int(since) if since != "none" and same else None
        self._send(snapshots.news(snapshots.newest(), known), "application/json")

    def _refuse(
        self, status: HTTPStatus, words: str, headers: dict[str, str] | None = None
    ) -> None:
        self._send(words + "\n", "text/plain; charset=utf-8", status, headers)

    def _send(
        self,
        text: str,
        kind: str,
        status: HTTPStatus = HTTPStatus.OK,
        headers: dict[str, str] | None = None,
    ) -> None:
        body = text.encode()
        zipped = len(body) > LEAST_ZIPPED and "gzip" in self.headers.get("Accept-Encoding", "")
        body = gzip.compress(body, 1) if zipped else body
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if zipped:
            self.send_header("Content-Encoding", "gzip")
        for name, value in {**SAFE, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Requests are nothing to print."""


SAFE = {
    "Cache-Control": "no-store",
    "Vary": "Accept-Encoding",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


def _host_name(host: str | None) -> str | None:
    """The name or address in a Host header, without its port."""
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.%]+\]|[^\s:/@\[\]]+)(:\d*)?", host or "")
    return found[1].strip("[]").rstrip(".").lower() if found else None


def _bare(address: object) -> str:
    """An address without the zone of IPv6 (`fe80::1%eth0`)."""
    return str(address).split("%")[0]


def _own_names() -> set[str]:
    name = socket.gethostname().lower()
    return {name, f"{name}.local", socket.getfqdn().lower()}


def _taken(error: OSError) -> bool:
    return error.errno in (errno.EADDRINUSE, errno.EACCES)
