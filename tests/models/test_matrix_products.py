"""Products by oneDNN equal PyTorch's own, with their gradients."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from polyopt.models import matrix_products
from polyopt.models.matrix_products import SMALL, fast_linear, onednn_works, product

pytestmark = pytest.mark.skipif(not onednn_works(), reason="this build of PyTorch has no oneDNN")


@pytest.fixture(autouse=True)
def on_amd(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if on a machine where oneDNN is the faster one."""
    monkeypatch.setattr(matrix_products, "onednn_is_faster", lambda: True)


@pytest.mark.parametrize("shape", [(300, 70), (3, 100, 70)], ids=["2d", "3d"])
@pytest.mark.parametrize("with_bias", [True, False], ids=["bias", "no bias"])
def test_linear_and_its_gradients_equal_pytorchs(shape: tuple[int, ...], with_bias: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(*shape, generator=draw)
    w, b = torch.randn(90, 70, generator=draw), torch.randn(90, generator=draw)
    assert x.numel() * 90 > SMALL
    results = []
    for fast in (True, False):
        leaves = [t.clone().requires_grad_() for t in (x, w, b)]
        with fast_linear(fast):
            out = F.linear(leaves[0], leaves[1], leaves[2] if with_bias else None)
        out.square().sum().backward()  # type: ignore[no-untyped-call]
        results.append([out, *(leaf.grad for leaf in leaves[: 2 + with_bias])])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-2)


def test_frozen_weights_get_no_gradient() -> None:
    x, w = torch.randn(300, 70, requires_grad=True), torch.randn(90, 70)
    with fast_linear(True):
        F.linear(x, w).sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert w.grad is None


def test_products_of_transposed_views_equal_pytorchs() -> None:
    a, b = torch.randn(200, 300), torch.randn(100, 200)
    torch.testing.assert_close(product(a.t(), b.t()), a.t() @ b.t(), rtol=1e-4, atol=1e-3)


def test_other_types_and_small_products_are_left_to_pytorch() -> None:
    a = torch.randn(300, 300, dtype=torch.float64)
    assert torch.equal(product(a, a), a @ a)
    small = torch.randn(4, 4)
    assert torch.equal(product(small, small), small @ small)
