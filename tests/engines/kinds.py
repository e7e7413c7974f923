"""The engines that the conformance suite runs on, and what each of them can't do."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.engines.sampling_server import SamplingServer
from tests.engines.small_models import decode, small_policy
from tests.engines.vllm_server import vllm_server

from polyopt.engines.fast_decoder import FastDecoder
from polyopt.engines.generic_decoder import GenericDecoder
from polyopt.engines.http import HttpEngine
from polyopt.engines.local import LocalEngine
from polyopt.engines.native_decoder import NativeDecoder
from polyopt.engines.protocol import Engine, SampleRequest
from polyopt.native.library import native

Maker = Callable[..., Engine]

OUTSIDE = {
    "entropy": "only log-probabilities of sampled tokens come back, not whole distributions",
    "inverse-cdf": "the draws are the server's own, not ours by inversion",
    "positional-draws": "a fork's random stream begins anew, whatever its position",
    "min-p-after-top-p": "cuts in another order than the trainer, and is refused",
}
"""What engines outside this process can't do, and why."""


@dataclass(frozen=True)
class Kind:
    """An engine under test.

    Attributes:
        open: Starts what the engine needs for a model; gives a maker of engines.
        cannot: What it can't do, with the reason.
        architecture: The small model that it is tested with.
        slow: It belongs to the longer evidence.
        draws: Samples for a test of frequencies.
    """

    open: Callable[[Any], AbstractContextManager[Maker]]
    cannot: dict[str, str] = field(default_factory=dict)
    architecture: str = "llama"
    slow: bool = False
    draws: int = 3000

    def need(self, ability: str) -> None:
        """Skip the test, with the reason, if the engine can't do this."""
        if ability in self.cannot:
            pytest.skip(f"{ability}: {self.cannot[ability]}")

    def able(self, requests: Iterable[SampleRequest]) -> list[SampleRequest]:
        """The requests without what the engine can't do."""
        return [self._able(request) for request in requests]

    def _able(self, request: SampleRequest) -> SampleRequest:
        if "entropy" in self.cannot:
            request = dataclasses.replace(request, entropy=False)
        both = request.distribution.min_p > 0.0 and request.distribution.top_p < 1.0
        if both and "min-p-after-top-p" in self.cannot:
            plain = dataclasses.replace(request.distribution, min_p=0.0)
            request = dataclasses.replace(request, distribution=plain)
        return request


def _local(decoder: Any) -> Callable[[Any], AbstractContextManager[Maker]]:
    @contextmanager
    def opened(model: Any) -> Iterator[Maker]:
        yield lambda **options: LocalEngine(model, decode, decoder=decoder, **options)

    return opened


@contextmanager
def _local_native(model: Any) -> Iterator[Maker]:
    """The local engine with its decoder in C."""
    if native() is None:
        pytest.skip("no C compiler here")
    with _local(NativeDecoder)(model) as maker:
        yield maker


@contextmanager
def _http_stand_in(model: Any) -> Iterator[Maker]:
    """A server in a thread of this process, which speaks vLLM's dialect."""
    with SamplingServer(model) as server:
        engine = HttpEngine(server.url, decode)
        engine.sync(small_policy(model=model))
        yield lambda **options: engine


@contextmanager
def _http_vllm(model: Any) -> Iterator[Maker]:
    """A vLLM server process."""
    policy = small_policy(model=model)
    with vllm_server(policy) as url:
        engine = HttpEngine(url, decode)
        engine.sync(policy)
        yield lambda **options: engine


@contextmanager
def _vllm(model: Any) -> Iterator[Maker]:
    """vLLM in this process."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip(f"vLLM isn't installed for {sys.executable}")
    from polyopt.engines.vllm import VllmEngine

    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    engine = VllmEngine()
    engine.sync(small_policy(model=model))
    yield lambda **options: engine


ENGINES = {
    "local-generic": Kind(_local(GenericDecoder)),
    "local-fast": Kind(_local(FastDecoder)),
    "local-native": Kind(_local_native),
    "http": Kind(_http_stand_in, OUTSIDE, draws=300),
    "http-vllm": Kind(_http_vllm, OUTSIDE, "llama-wide", slow=True, draws=1000),
    "vllm": Kind(_vllm, OUTSIDE, "llama-wide", slow=True),
}
