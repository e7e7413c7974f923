"""JSON over HTTP with retries, and errors that say what to do."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from polyopt.errors import UserError

BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses after which the same request may go well."""


class ServerError(UserError):
    """A server's refusal.

    Attributes:
        status: The HTTP status.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Connection:
    """Talks to one server; each thread keeps its own connection open.

    Args:
        address: Scheme, host and port, such as `http://localhost:8000`.
        key: Sent as a bearer token, if given.
        timeout: Seconds to wait for an answer.
        retries: Further tries after a failed one.
        pause: Seconds before the first further try; each next one waits twice as long.
    """

    def __init__(
        self,
        address: str,
        *,
        key: str | None = None,
        timeout: float = 600.0,
        retries: int = 5,
        pause: float = 0.2,
    ) -> None:
        self.address = address.rstrip("/")
        self.timeout, self.retries, self.pause = timeout, retries, pause
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._local = threading.local()

    def get(self, path: str) -> Any:
        """The JSON at a path."""
        return self._tried("GET", path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """What the server answers to a JSON body; None if it answers nothing."""
        return self._tried("POST", path, json.dumps(body).encode())

    def _tried(self, method: str, path: str, body: bytes | None) -> Any:
        """The answer, after as many tries as it takes and are allowed.

        Raises:
            ServerError: The server refuses the request.
            UserError: No server, or none that answers in time or in JSON.
        """
        wait, last = self.pause, UserError("")
        for remaining in range(self.retries, -1, -1):
            try:
                status, text = self._once(method, path, body)
            except (OSError, http.client.HTTPException) as error:
                last = self._unreachable(error)
            else:
                if status < 300:
                    return self._json(path, text)
                last = self._refusal(path, status, text)
                if status not in BUSY:
                    raise last
            if remaining:
                time.sleep(wait)
                wait *= 2
        raise last

    def _once(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self._open()
        try:
            connection.request(method, path, body, self._headers)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            connection.close()
            self._local.connection = None
            raise

    def _open(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.address)
        secure = parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        return kind(parts.hostname or "", parts.port, timeout=self.timeout)

    def _json(self, path: str, text: bytes) -> Any:
        if not text.strip():
            return None
        try:
            return json.loads(text)
        except ValueError:
            start = text[:80].decode(errors="replace")
            raise UserError(
                f"{self.address}{path} answers no JSON ({start!r}): is this the address of an "
                "OpenAI-compatible server, with its /v1?"
            ) from None

    def _unreachable(self, error: Exception) -> UserError:
        what = str(error) or type(error).__name__
        return UserError(
            f"no answer from {self.address} ({what}; {self.retries + 1} tries): start the server, "
            "or correct the address in --engine (docs/engines.md shows both)."
        )

    def _refusal(self, path: str, status: int, text: bytes) -> ServerError:
        said = _message(text)
        hint = ""
        if status == 404:
            hint = " Check the path and the model's name: --engine http://HOST:PORT/v1#MODEL."
        elif status in (401, 403):
            hint = " Put its key into the environment variable POLYOPT_ENGINE_KEY."
        elif "context" in said.lower() or "max_model_len" in said or "length" in said.lower():
            hint = " Lower --max-tokens, or give the server a longer context."
        return ServerError(f"{self.address}{path} refuses (HTTP {status}): {said}{hint}", status)


def _message(text: bytes) -> str:
    """The words of an error body, whichever way it wraps them."""
    try:
        body = json.loads(text)
    except ValueError:
        return text[:300].decode(errors="replace").strip() or "no reason given."
    for _ in range(2):
        if isinstance(body, dict):
            body = next((body[k] for k in ("error", "message", "detail") if k in body), body)
    return str(body)
