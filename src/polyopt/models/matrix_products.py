"""Matrix products on CPUs, by oneDNN.

PyTorch's default for float32 on a CPU is MKL, which on AMD machines leaves half of the vectors
idle. There oneDNN is 2.2 times faster at the sizes of a 135M model, forward
and backward (docs/log.md). On Intel machines MKL is the faster one, most of all for gradients of
weights. Elsewhere, without oneDNN, and where the product is small, PyTorch's own is used.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

SMALL = 1 << 20
"""Multiplications below which the call costs more than is gained."""


def product(
    a: Float[Tensor, "M K"],
    b: Float[Tensor, "K N"],
    *,
    add: Float[Tensor, "M N"] | None = None,
    out: Float[Tensor, "M N"] | None = None,
) -> Float[Tensor, "M N"]:
    """a @ b + `add` without a graph, by the fastest library there is; written to `out` if given.

    `out` may be `add` itself, and its rows may lie apart.
    """
    if not _gains(a, b, a.shape[0] * a.shape[1] * b.shape[1]):
        return torch.mm(a, b, out=out) if add is None else torch.addmm(add, a, b, out=out)
    found = _onednn(a, b.t(), None)
    if add is not None:
        found += add
    return found if out is None else out.copy_(found)


@contextmanager
def fast_linear(active: bool) -> Iterator[None]:
    """While active, `F.linear` on float32 CPU tensors goes through oneDNN, gradients included."""
    if active and onednn_is_faster():
        with _FastLinear():
            yield
    else:
        yield


@functools.cache
def onednn_is_faster() -> bool:
    """Whether this is an AMD processor with a oneDNN that works."""
    try:
        about = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return False
    return "AuthenticAMD" in about and onednn_works()


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
        return _onednn(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        inputs, weight = ctx.saved_tensors
        needs_inputs, needs_weight, needs_bias = ctx.needs_input_grad
        rows = grad.reshape(-1, grad.shape[-1])
        grad_inputs = _onednn(grad, weight.t(), None) if needs_inputs else None
        flat = inputs.reshape(-1, inputs.shape[-1])
        grad_weight = _onednn(rows.t(), flat.t(), None) if needs_weight else None
        return grad_inputs, grad_weight, rows.sum(0) if needs_bias else None


def _onednn(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """inputs @ weight^T + bias; rows and weight may be transposed views."""
    out = torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")
    return cast(Tensor, out)


def _fits(inputs: Tensor, weight: Tensor, *rest: Any) -> bool:
    bias = rest[0] if rest else None
    alike = bias is None or (bias.dtype == weight.dtype and bias.is_contiguous())
    return alike and _gains(inputs, weight, inputs.numel() * weight.shape[0])


def _gains(a: Tensor, b: Tensor, multiplications: int) -> bool:
    """Whether oneDNN is there for these tensors and the product is large enough to gain."""
    plain = a.device.type == "cpu" and a.dtype == torch.float32 and b.dtype == torch.float32
    return plain and multiplications > SMALL and onednn_is_faster()
