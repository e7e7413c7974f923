"""Engines by name: `local`, `vllm`, `http://host:port/v1#model`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from polyopt.engines.protocol import Engine
from polyopt.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from polyopt.engines.http import Push
    from polyopt.models.policy import Policy


def engine_from(spec: str, policy: Policy) -> Engine:
    """The engine that a specification names, for the policy.

    Args:
        spec: `"local"`, optionally with options (`"local?max_rows=64"`); `"vllm"`, optionally with
            those of `vllm.LLM` (`"vllm?gpu_memory_utilization=0.3"`); or a server's address with
            the model's name after `#`: `"http://localhost:8000/v1#my-model"`. A server may be given
            `rows` (requests at once), `timeout` (seconds), `retries`, and `sync`: `sync=vllm` to
            load new weights through vLLM's development endpoints, or `sync=/path` to POST to that
            path.
        policy: What will be trained; the engine still needs `sync(policy)`.

    Raises:
        UserError: No such engine, or an option it doesn't have.
    """
    parts = urlsplit(spec)
    options = {name: _value(text) for name, text in parse_qsl(parts.query)}
    if parts.scheme in ("http", "https"):
        return _http_engine(spec, options, policy)
    if parts.path == "vllm" and not parts.scheme:
        from polyopt.engines.vllm import VllmEngine

        return VllmEngine(**options)
    if parts.path == "local" and not parts.scheme:
        from polyopt.engines.local import LocalEngine

        _check_options(options, ("cache_bytes", "max_rows"), "local")
        return LocalEngine(policy.model, policy.decode, **options)
    raise UserError(
        f"no engine {spec!r}; {did_you_mean(parts.path, ('local', 'vllm'))} A server is given as "
        "http://HOST:PORT/v1#MODEL."
    )


def _http_engine(spec: str, options: dict[str, Any], policy: Policy) -> Engine:
    from polyopt.engines.http import HttpEngine

    parts = urlsplit(spec)
    try:
        parts.port  # noqa: B018  (raises for a port that is no number)
    except ValueError as error:
        raise UserError(f"--engine {spec}: {error}.") from None
    if not parts.hostname:
        raise UserError(f"--engine {spec} names no host: write http://HOST:PORT/v1#MODEL.")
    _check_options(options, ("rows", "timeout", "retries", "pause", "sync"), "http")
    sync = options.pop("sync", None)
    rows = {"rows": options.pop("rows")} if "rows" in options else {}
    options["key"] = os.environ.get("POLYOPT_ENGINE_KEY")
    address = f"{parts.scheme}://{parts.netloc}"
    push = None if sync is None else _push(str(sync), address, options)
    url = f"{address}{parts.path or '/v1'}"
    model = parts.fragment or None
    return HttpEngine(url, policy.decode, model=model, push=push, **rows, **options)


def _push(sync: str, address: str, options: dict[str, Any]) -> Push:
    from polyopt.engines.http import endpoint_push, vllm_push

    if sync == "vllm":
        return vllm_push(address, **options)
    if sync.startswith("/"):
        return endpoint_push(address + sync, **options)
    raise UserError(f"sync={sync} is neither vllm nor a path on the server such as /load.")


def _check_options(options: dict[str, Any], known: tuple[str, ...], engine: str) -> None:
    for name in options:
        if name not in known:
            raise UserError(
                f"the {engine} engine has no option {name!r}; {did_you_mean(name, known)}"
            )


def _value(text: str) -> Any:
    """A number or a truth value where the text is one, else the text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)
