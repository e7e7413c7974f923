"""Sampling from an OpenAI-compatible server, token ids in and token ids out."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from polyopt.distribution import Distribution
from polyopt.engines.answers import Answer, Limits, sample_through
from polyopt.engines.connection import Connection
from polyopt.engines.protocol import Finish, Sample, SampleRequest
from polyopt.engines.stopping import Decode
from polyopt.errors import UserError

if TYPE_CHECKING:
    from polyopt.models.policy import Policy

PLAIN = Distribution()
Push = Callable[[Path, int], None]
"""Tells a server to load the weights in a folder, which have this version."""


class HttpEngine:
    """Samples from a server's `/v1/completions`.

    Prompts go out as token ids, and the ids that were sampled come back with their
    log-probabilities: nothing is ever tokenized again. A server that gives only text is refused.

    The server samples from its own weights. With `push`, `sync` writes the policy to a folder that
    the server can read and has it loaded. Without, the server keeps the weights that it has:
    samples then carry the version of the first `sync`, `sampler_gap` grows as the policy moves
    away, and an idea such as `tis` corrects for it.

    Guarantee: requests are sampled independently, each with its own seed; whether the same seed
    gives the same sample again is up to the server. Token draws aren't those of the local engine,
    and a fork with its parent's seed doesn't repeat the parent's tail.

    Args:
        url: Address with path, such as `http://localhost:8000/v1`.
        decode: Text of token ids, for stop strings.
        model: The model's name there; None takes the only one that the server has.
        rows: Most requests under way at once.
        push: Has the server load new weights.
        connection: Options of the connection (`key`, `timeout`, `retries`, `pause`).
    """

    def __init__(
        self,
        url: str,
        decode: Decode,
        *,
        model: str | None = None,
        rows: int = 64,
        push: Push | None = None,
        **connection: Any,
    ) -> None:
        if rows < 1:
            raise UserError(f"rows={rows} leaves no request to send; give at least 1.")
        parts = urlsplit(url)
        self._server = Connection(f"{parts.scheme}://{parts.netloc}", **connection)
        self._path = parts.path.rstrip("/")
        self._decode, self._push, self._rows = decode, push, rows
        self._pool: ThreadPoolExecutor | None = None
        self._model = model
        self._named = False
        self._limits = Limits()
        self._processed: bool | None = None
        self._version: int | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def version(self) -> int:
        """Version of the weights that the server is known to hold."""
        return self._version or 0

    def sync(self, policy: Policy) -> None:
        """Have the server load the policy's weights, if it was said how."""
        self._limits = Limits.of(policy)
        self._decode = policy.decode
        if self._push is None:
            self._version = policy.version if self._version is None else self._version
            return
        folder = tempfile.TemporaryDirectory(prefix="polyopt-weights-")
        policy.save(folder.name)
        self._push(Path(folder.name), policy.version)
        if self._folder is not None:
            self._folder.cleanup()
        self._folder, self._version = folder, policy.version

    def sample(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        """The samples of the requests, in their order."""
        return sample_through(self._ask, requests, self._limits, self._decode, self.version)

    def _ask(self, requests: list[SampleRequest]) -> list[Answer]:
        self._model = self._model if self._named else self._known_model()
        self._named = True
        for request in requests:
            self._check_distribution(request)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._rows, "polyopt-http")
        futures = [self._pool.submit(self._complete, request) for request in requests]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()

    def _known_model(self) -> str:
        """The model's name, once the server says that it has it."""
        listed = self._server.get(f"{self._path}/models")
        names = [str(entry["id"]) for entry in (listed or {}).get("data", [])]
        if self._model is None and len(names) == 1:
            return names[0]
        if self._model in names:
            return str(self._model)
        asked = "no model is named" if self._model is None else f"no model {self._model!r}"
        raise UserError(
            f"{asked} for {self._server.address}, which has: {', '.join(names) or 'none'}. "
            "Name one of them: --engine http://HOST:PORT/v1#MODEL."
        )

    def _complete(self, request: SampleRequest) -> Answer:
        answer = self._server.post(f"{self._path}/completions", self._body(request))
        try:
            choice = answer["choices"][0]
        except (KeyError, IndexError, TypeError):
            raise UserError(
                f"{self._server.address} answers without choices: {str(answer)[:200]!r}; is it an "
                "OpenAI-compatible server?"
            ) from None
        return parse_choice(choice, self._server.address)

    def _body(self, request: SampleRequest) -> dict[str, Any]:
        """The request in the fields of vLLM and llama.cpp; others ignore what they don't know."""
        distribution = request.distribution
        body: dict[str, Any] = {
            "model": self._model,
            "prompt": list(request.prompt + request.prefix),
            "max_tokens": request.max_tokens - len(request.prefix),
            "temperature": distribution.temperature,
            "top_p": distribution.top_p,
            "top_k": distribution.top_k or -1,
            "min_p": distribution.min_p,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
            "seed": request.seed % 2**63,
            "logprobs": 1,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "ignore_eos": True,
            "stop_token_ids": sorted(request.stop_ids),
        }
        if request.stop_strings:
            body |= {"stop": list(request.stop_strings), "include_stop_str_in_output": True}
        return body

    def _check_distribution(self, request: SampleRequest) -> None:
        """Refuse a distribution whose log-probabilities the server doesn't report."""
        if request.distribution in (PLAIN, Distribution(temperature=0.0)):
            return
        if self._processed is None:
            self._processed = self._reports_processed((request.prompt or request.prefix)[:1])
        if not self._processed:
            raise UserError(
                f"{self._server.address} reports log-probabilities of the plain softmax, not of "
                f"{request.distribution}: start it so that it reports those it samples from (vLLM: "
                "--logprobs-mode processed_logprobs), or sample at temperature 1 without top-p, "
                "top-k and min-p."
            )

    def _reports_processed(self, prompt: tuple[int, ...]) -> bool:
        """Whether the only token that top-k 1 leaves has probability 1."""
        only = SampleRequest(prompt, 0, 1, distribution=Distribution(top_k=1))
        return self._complete(only).logp[0] > -1e-6


def parse_choice(choice: Mapping[str, Any], address: str) -> Answer:
    """Exact token ids and log-probabilities of an answer.

    Ids are read from `token_ids` (vLLM), `logprobs.tokens` of the form `token_id:7` (vLLM with
    `return_tokens_as_token_ids`), or `logprobs.content[].id` (llama.cpp).

    Raises:
        UserError: The answer lacks token ids or log-probabilities.
    """
    logprobs = choice.get("logprobs") or {}
    content = logprobs.get("content") or []
    logp = logprobs.get("token_logprobs") or [entry.get("logprob") for entry in content]
    tokens = choice.get("token_ids")
    if tokens is None:
        tokens = [_named_id(token) for token in logprobs.get("tokens") or []]
        tokens = tokens or [entry.get("id") for entry in content]
    if not tokens or any(token is None for token in tokens):
        raise UserError(
            f"{address} gives text without token ids, and text can't be turned back into the "
            "tokens that were sampled. Use a server that returns ids, such as vLLM (0.10.2 or "
            "newer); llama-cpp-python's server and `transformers serve` don't."
        )
    if len(logp) != len(tokens) or any(p is None or math.isnan(p) for p in logp):
        raise UserError(
            f"{address} gives {len(tokens)} tokens without a log-probability each ({len(logp)} "
            "came): start it with log-probabilities allowed (vLLM: --max-logprobs 1 or more)."
        )
    finish: Finish = "length" if choice.get("finish_reason") == "length" else "stop"
    return Answer(tuple(map(int, tokens)), tuple(map(float, logp)), finish)


def _named_id(token: object) -> int | None:
    """7 of `token_id:7`."""
    number = str(token).removeprefix("token_id:")
    return int(number) if number != str(token) and number.isdigit() else None


def vllm_push(address: str, **connection: Any) -> Push:
    """Reload a vLLM server's weights through its development endpoints.

    The server must run with `VLLM_SERVER_DEV_MODE=1` and see the same file system.
    """
    server = Connection(address, **connection)

    def push(folder: Path, version: int) -> None:
        load = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        server.post("/collective_rpc", load)
        server.post("/reset_prefix_cache", {})

    return push


def endpoint_push(url: str, **connection: Any) -> Push:
    """POST `{"path": folder, "version": number}` to an endpoint of one's own."""
    parts = urlsplit(url)
    server = Connection(f"{parts.scheme}://{parts.netloc}", **connection)

    def push(folder: Path, version: int) -> None:
        server.post(parts.path or "/", {"path": str(folder), "version": version})

    return push
