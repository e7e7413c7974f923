"""Products on AMX are as exact as float32 ones, whatever the shapes and layouts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from polyopt.native.library import native

KERNELS = native()
pytestmark = pytest.mark.skipif(
    KERNELS is None or not KERNELS.has_amx, reason="no AMX on this machine"
)
SHAPES = [(1, 1, 1), (16, 16, 32), (33, 70, 31), (40, 5, 2049), (4100, 33, 40), (7, 4100, 65)]


def error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize(("m", "n", "terms"), SHAPES)
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
def test_error_is_that_of_float32(m: int, n: int, terms: int, turned: tuple[bool, bool]) -> None:
    assert KERNELS is not None
    noise = torch.Generator().manual_seed(m + n + terms)
    left = torch.randn(m, terms, generator=noise) * 10.0 ** torch.randint(-6, 6, (m, 1))
    right, bias = torch.randn(n, terms, generator=noise), torch.randn(n, generator=noise)
    exact = left.double() @ right.double().T
    factors = [
        factor.t().contiguous().t() if turn else factor
        for factor, turn in zip((left, right), turned, strict=True)
    ]
    bound = max(2 * error(left @ right.T, exact), 3e-7)
    assert error(KERNELS.split_product(*factors), exact) <= bound
    assert error(KERNELS.split_product(*factors, bias), exact + bias) <= bound


def test_a_result_is_added_to_what_is_there() -> None:
    assert KERNELS is not None
    left, right, out = torch.randn(50, 3000), torch.randn(40, 3000), torch.randn(50, 40)
    expected = out + left @ right.T
    torch.testing.assert_close(
        KERNELS.split_product(left, right, out=out), expected, atol=1e-3, rtol=1e-4
    )


def test_threads_change_nothing() -> None:
    assert KERNELS is not None
    left, right = torch.randn(100, 300), torch.randn(90, 300)
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(KERNELS.split_product(left, right))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
