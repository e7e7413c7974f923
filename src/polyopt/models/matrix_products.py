"""Matrix products on CPUs, by oneDNN.

PyTorch's default for float32 on a CPU is MKL, which on AMD machines leaves half of the vector units
idle. oneDNN's linear layer was measured 2.2 times faster at the sizes of a 135M model, forward and
backward (docs/log.md); where it isn't there, or the product is small, PyTorch's own is used.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from polyopt.native.library import Library, kernels_for

SMALL = 1 << 20
"""Multiplications below which the call costs more than is gained."""

WORTHWHILE = 128
"""For AMX, each factor is split first: that pays if every number of it is used often enough.

A number of the left factor takes part in as many products as the right one has rows, and the other
way round; the harmonic mean of both numbers must be at least twice this.
"""


def product(
    a: Float[Tensor, "M K"], b: Float[Tensor, "K N"], out: Float[Tensor, "M N"] | None = None
) -> Float[Tensor, "M N"]:
    """a @ b without a graph, by the fastest library there is; added to `out` if that is given."""
    if kernels := _tiles(a, b, a.shape[0], b.shape[1]):
        return kernels.split_product(a, b.t(), out=out)
    if _gains(a, b, a.shape[0] * a.shape[1] * b.shape[1]):
        found = _onednn(a, b.t(), None)
    elif out is not None:
        return out.addmm_(a, b)
    else:
        return a @ b
    return found if out is None else out.add_(found)


@contextmanager
def fast_linear(active: bool) -> Iterator[None]:
    """While active, `F.linear` on float32 CPU tensors goes through oneDNN, gradients included."""
    if active and onednn_works():
        with _FastLinear():
            yield
    else:
        yield


@functools.cache
def onednn_works() -> bool:
    """Whether oneDNN's linear layer is there and agrees with PyTorch's on a small case."""
    weight, inputs = torch.linspace(-1, 1, 96).view(8, 12), torch.linspace(0, 1, 36).view(3, 12)
    try:
        out = _onednn(inputs, weight, None)
    except (AttributeError, RuntimeError):
        return False
    return torch.allclose(out, F.linear(inputs, weight), atol=1e-5)


class _FastLinear(TorchFunctionMode):
    """Takes over `F.linear`; every other function is called as it is."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is F.linear and not kwargs and _fits(*args):
            bias = args[2] if len(args) == 3 else None
            return _Linear.apply(args[0], args[1], bias)  # type: ignore[no-untyped-call]
        return func(*args, **(kwargs or {}))


class _Linear(torch.autograd.Function):
    """y = x W^T + b; dx = dy W, dW = dy^T x, db = sum dy."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        return _linear(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        inputs, weight = ctx.saved_tensors
        needs_inputs, needs_weight, needs_bias = ctx.needs_input_grad
        rows = grad.reshape(-1, grad.shape[-1])
        grad_inputs = _linear(grad, weight.t(), None) if needs_inputs else None
        flat = inputs.reshape(-1, inputs.shape[-1])
        grad_weight = _linear(rows.t(), flat.t(), None) if needs_weight else None
        return grad_inputs, grad_weight, rows.sum(0) if needs_bias else None


def _linear(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """inputs @ weight^T + bias; rows and weight may be transposed views."""
    if kernels := _tiles(inputs, weight, inputs.numel() // inputs.shape[-1], len(weight)):
        flat = inputs.reshape(-1, inputs.shape[-1]) if inputs.dim() != 2 else inputs
        out = kernels.split_product(flat, weight, bias)
        return out.view(*inputs.shape[:-1], len(weight))
    return _onednn(inputs, weight, bias)


def _onednn(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """inputs @ weight^T + bias; rows and weight may be transposed views."""
    out = torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")
    return cast(Tensor, out)


def _tiles(a: Tensor, b: Tensor, rows: int, columns: int) -> Library | None:
    """The kernels that use AMX, if they are there and such a product gains by them."""
    if rows * columns < WORTHWHILE * (rows + columns):
        return None
    kernels = kernels_for(a, b)
    return kernels if kernels is not None and kernels.has_amx else None


def _fits(inputs: Tensor, weight: Tensor, *rest: Any) -> bool:
    bias = rest[0] if rest else None
    alike = bias is None or (bias.dtype == weight.dtype and bias.is_contiguous())
    return alike and _gains(inputs, weight, inputs.numel() * weight.shape[0])


def _gains(a: Tensor, b: Tensor, multiplications: int) -> bool:
    """Whether oneDNN is there for these tensors and the product is large enough to gain."""
    plain = a.device.type == "cpu" and a.dtype == torch.float32 and b.dtype == torch.float32
    return plain and multiplications > SMALL and onednn_works()
