"""Engines by name."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from tests.engines.small_models import small_policy

from polyopt.engines.choice import engine_from
from polyopt.engines.http import HttpEngine
from polyopt.engines.local import LocalEngine
from polyopt.errors import UserError


@pytest.fixture(scope="module")
def policy() -> Any:
    """A policy to sample from."""
    return small_policy("llama")


def test_local_takes_its_options(policy: Any) -> None:
    engine = engine_from("local?max_rows=7", policy)
    assert isinstance(engine, LocalEngine)
    assert engine.max_rows == 7


@pytest.mark.parametrize("spec", ["http://localhost:8000/v1#m", "https://somewhere.example"])
def test_an_address_is_a_server(policy: Any, spec: str) -> None:
    assert isinstance(engine_from(spec, policy), HttpEngine)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("vlm", "did you mean vllm"),
        ("ftp://host/v1", "http://HOST:PORT"),
        ("localhost:8000", "http://HOST:PORT"),
        ("http://host:port/v1", "--engine http://host:port"),
        ("http:///v1", "names no host"),
        ("http://host/v1?row=3", "did you mean rows"),
        ("http://host/v1?rows=0", "rows=0"),
        ("http://host/v1?sync=tgi", "neither vllm nor a path"),
        ("local?rows=3", "did you mean max_rows"),
        ("local?max_rows=0", "max_rows=0"),
    ],
)
def test_what_names_no_engine_is_refused_with_the_way_out(
    policy: Any, spec: str, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        engine_from(spec, policy)


def test_vllm_that_is_not_installed_is_an_error_that_says_how(
    policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(UserError, match=r"polyopt\[vllm\]"):
        engine_from("vllm", policy)
