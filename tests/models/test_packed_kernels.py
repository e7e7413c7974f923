"""Packed attention by C kernels equals the obvious way, gradients included."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from polyopt.models.packed_kernels import Stretches, packed_attention
from polyopt.native.library import kernels_for, native

KERNELS = native()
pytestmark = pytest.mark.skipif(KERNELS is None, reason="no C compiler here")

TABLE = [(0, 50, 0, 0), (50, 7, 0, 50), (57, 33, 0, 50), (90, 1, 0, 0), (91, 70, 0, 0)]
TABLE += [(161, 64, 91, 70)]
STRETCHES = Stretches(torch.tensor(TABLE), torch.tensor([0, 3, 4, 6]))
TOKENS = 225


def obvious(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """All scores at once, with a mask of who sees whom."""
    see = torch.zeros(TOKENS, TOKENS, dtype=torch.bool)
    for start, length, trunk, trunk_length in TABLE:
        own = slice(start, start + length)
        see[own, own] = torch.ones(length, length).tril().bool()
        see[own, trunk : trunk + trunk_length] = trunk_length > 0
    repeats = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
    scores = torch.einsum("shd,thd->hst", q, k) * scale
    return torch.einsum("hst,thd->shd", scores.masked_fill(~see, -torch.inf).softmax(-1), v)


@pytest.mark.parametrize(("heads", "key_heads", "size"), [(9, 3, 64), (2, 2, 16), (4, 1, 20)])
@pytest.mark.parametrize("spread", [1.0, 30.0])
def test_attention_and_its_gradients(heads: int, key_heads: int, size: int, spread: float) -> None:
    assert KERNELS is not None
    noise = torch.Generator().manual_seed(size)
    shapes = [(TOKENS, n, size) for n in (heads, key_heads, key_heads)]
    inputs = [torch.randn(shape, generator=noise, requires_grad=True) for shape in shapes]
    weight, scale = torch.randn(shapes[0], generator=noise), spread * size**-0.5
    results = []
    for out in (
        packed_attention(KERNELS, *inputs, STRETCHES, scale),
        obvious(*inputs, scale),
    ):
        results.append([out, *torch.autograd.grad(out, inputs, weight)])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5 * spread)


def test_heads_may_lie_in_any_order_in_memory() -> None:
    assert KERNELS is not None
    q, k, v = (torch.randn(n, TOKENS, 16).transpose(0, 1) for n in (4, 2, 2))
    found = packed_attention(KERNELS, q, k, v, STRETCHES, 0.25)
    torch.testing.assert_close(found, obvious(q, k, v, 0.25), rtol=1e-4, atol=1e-5)


def test_mixed_precision_is_left_to_pytorch() -> None:
    assert kernels_for(torch.zeros(2), torch.zeros(2, dtype=torch.bfloat16)) is None
    assert kernels_for(torch.zeros(2), torch.zeros(2)) is KERNELS
