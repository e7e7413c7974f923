"""Linear layers for decoding: on CPUs, oneDNN kernels on weights in oneDNN's own layout.

PyTorch's default for float32 on a CPU is MKL, which on AMD machines leaves AVX-512 unused, and
reads weights slowly at small batches. oneDNN on reordered weights was measured 1.5 to 4 times
faster at every batch size from 1 to 128 (`benchmarks/sample.py`).
"""

from __future__ import annotations

import functools
from typing import Protocol, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

LAYOUT_ROWS = 32
"""Batch size the layout is chosen for; it serves smaller and larger ones as well."""


class Projection(Protocol):
    """An affine map of the last dimension."""

    def __call__(self, inputs: Float[Tensor, "R I"]) -> Float[Tensor, "R O"]:
        """weight @ input + bias for each row."""


class PlainProjection:
    """PyTorch's own linear layer."""

    def __init__(self, weight: Float[Tensor, "O I"], bias: Float[Tensor, " O"] | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, inputs: Float[Tensor, "R I"]) -> Float[Tensor, "R O"]:
        """weight @ input + bias for each row."""
        return F.linear(inputs, self._weight, self._bias)


class ReorderedProjection:
    """oneDNN's linear layer on a copy of the weight in oneDNN's layout."""

    def __init__(self, weight: Float[Tensor, "O I"], bias: Float[Tensor, " O"] | None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), LAYOUT_ROWS)
        self._bias = bias

    def __call__(self, inputs: Float[Tensor, "R I"]) -> Float[Tensor, "R O"]:
        """weight @ input + bias for each row."""
        out = torch.ops.mkldnn._linear_pointwise(inputs, self._weight, self._bias, "none", [], "")
        return cast(Tensor, out)


def projection(weight: Float[Tensor, "O I"], bias: Float[Tensor, " O"] | None = None) -> Projection:
    """The fastest projection that this machine has for such a weight."""
    if weight.device.type == "cpu" and weight.dtype == torch.float32 and _onednn_works():
        return ReorderedProjection(weight, bias)
    return PlainProjection(weight, bias)


@functools.cache
def _onednn_works() -> bool:
    """Whether oneDNN's linear layer is there and agrees with PyTorch's on a small case."""
    weight, inputs = torch.linspace(-1, 1, 96).view(8, 12), torch.linspace(0, 1, 36).view(3, 12)
    try:
        out = ReorderedProjection(weight, None)(inputs)
    except (AttributeError, RuntimeError):
        return False
    return torch.allclose(out, F.linear(inputs, weight), atol=1e-5)
