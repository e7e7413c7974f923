"""A small OpenAI-compatible server in a thread: a stand-in for the fast tests.

It samples for real, from a model through the local engine, and can be told to misbehave.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.engines.small_models import decode

from polyopt.distribution import Distribution
from polyopt.engines.local import LocalEngine
from polyopt.engines.protocol import Sample, SampleRequest
from polyopt.errors import UserError

Choice = dict[str, Any]
Script = Callable[[str, dict[str, Any]], tuple[int, Any] | None]


def vllm_choice(sample: Sample) -> Choice:
    """Ids beside the text."""
    return {
        "text": decode(sample.tokens),
        "finish_reason": sample.finish,
        "token_ids": list(sample.tokens),
        "logprobs": {"token_logprobs": list(sample.logp)},
    }


def named_ids_choice(sample: Sample) -> Choice:
    """Ids as the names of the tokens: vLLM before 0.10.2."""
    names = [f"token_id:{token}" for token in sample.tokens]
    return {
        "text": decode(sample.tokens),
        "finish_reason": sample.finish,
        "logprobs": {"tokens": names, "token_logprobs": list(sample.logp)},
    }


def llama_cpp_choice(sample: Sample) -> Choice:
    """Ids inside the log-probabilities."""
    pairs = zip(sample.tokens, sample.logp, strict=True)
    content = [{"id": t, "token": decode([t]), "logprob": p} for t, p in pairs]
    return {
        "text": decode(sample.tokens),
        "finish_reason": sample.finish,
        "logprobs": {"content": content},
    }


def text_choice(sample: Sample) -> Choice:
    """Text and its log-probabilities, no ids: llama-cpp-python's server."""
    return {
        "text": decode(sample.tokens),
        "finish_reason": sample.finish,
        "logprobs": {
            "tokens": [decode([token]) for token in sample.tokens],
            "token_logprobs": list(sample.logp),
        },
    }


class SamplingServer:
    """Serves `/v1/models` and `/v1/completions` while its context is open.

    Attributes:
        choice: How a sample becomes an answer.
        script: Answers in place of the model where it gives (status, body).
        seen: Every request, as (path, body).
    """

    def __init__(self, model: Any, choice: Callable[[Sample], Choice] = vllm_choice) -> None:
        self.choice = choice
        self.script: Script = lambda path, body: None
        self.seen: list[tuple[str, dict[str, Any]]] = []
        self.names = ["small"]
        self._engine = LocalEngine(model, decode)
        self._lock = threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=lambda: self._http.serve_forever(0.01))

    @property
    def address(self) -> str:
        """Scheme, host and port."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def url(self) -> str:
        """The address with its path."""
        return f"{self.address}/v1"

    def __enter__(self) -> SamplingServer:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Status and body of an answer."""
        with self._lock:
            self.seen.append((path, body))
            scripted = self.script(path, body)
            if scripted is not None:
                return scripted
            if path == "/v1/models":
                return 200, {"data": [{"id": name} for name in self.names]}
            if path == "/v1/completions":
                return self._complete(body)
        return 404, {"error": {"message": f"no {path}"}}

    def _complete(self, body: dict[str, Any]) -> tuple[int, Any]:
        cut = (max(body["top_k"], 0), body["top_p"], body["min_p"])
        request = SampleRequest(
            prompt=tuple(body["prompt"]),
            seed=body["seed"],
            max_tokens=body["max_tokens"],
            distribution=Distribution(body["temperature"], *cut),
            stop_ids=frozenset(body["stop_token_ids"]),
            stop_strings=tuple(body.get("stop", ())),
        )
        try:
            return 200, {"choices": [self.choice(self._engine.sample([request])[0])]}
        except UserError as error:
            return 400, {"error": {"message": str(error)}}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                self._reply({})

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                self._reply(json.loads(self.rfile.read(length)))

            def _reply(self, body: dict[str, Any]) -> None:
                status, answer = server.answer(self.path, body)
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments: Any) -> None:
                """Say nothing."""

        return Handler
