"""The C kernels' matrix products against PyTorch's, and how the library comes to be."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from polyopt.native import build
from polyopt.native.library import native

needs_kernels = pytest.mark.skipif(native() is None, reason="no C compiler here")


@needs_kernels
@pytest.mark.parametrize("rows", [1, 2, 7, 8, 9, 33])
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (5, 47), (64, 48), (70, 100)])
def test_product_of_packed_weights(rows: int, inputs: int, outputs: int) -> None:
    kernels = native()
    assert kernels is not None
    x, weight, bias = torch.randn(rows, inputs), torch.randn(outputs, inputs), torch.randn(outputs)
    packed = kernels.pack(weight)
    torch.testing.assert_close(kernels.product(x, packed, None, outputs), x @ weight.T)
    torch.testing.assert_close(kernels.product(x, packed, bias, outputs), x @ weight.T + bias)


def test_without_a_compiler_there_is_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "compiler", lambda: None)
    assert build.compiled() is None


@needs_kernels
def test_a_cache_that_cannot_be_written_is_no_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert build.compiled() is None


@needs_kernels
def test_the_library_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = build.compiled()
    assert first is not None
    written = first.stat().st_mtime_ns
    assert build.compiled() == first
    assert first.stat().st_mtime_ns == written
    assert [path.name for path in first.parent.iterdir()] == [first.name]
