"""Attention over a packed sequence by C kernels: no gathers, no padding, no masks."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from polyopt.native.library import Library


class _Heads(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("token_stride", ctypes.c_int64),
        ("head_stride", ctypes.c_int64),
    ]


class _Attention(ctypes.Structure):
    _fields_ = [
        *((name, _Heads) for name in ("queries", "keys", "values", "out", "out_gradient")),
        *((f"{name}", ctypes.c_void_p) for name in ("norm", "queries_", "keys_", "values_")),
        *((name, ctypes.c_int64) for name in ("heads", "key_heads", "size")),
        ("scale", ctypes.c_float),
    ]


@dataclass(frozen=True)
class Stretches:
    """Who sees whom in a packed sequence.

    Attributes:
        table: For each stretch of tokens its start and length, and those of its trunk (0 and 0
            without one). Stretches that share a trunk follow it.
        families: Where in the table each trunk's family begins, and the table's length.
    """

    table: Int[Tensor, "B 4"]
    families: Int[Tensor, " F+1"]

    @classmethod
    def alone(cls, lengths: Sequence[int]) -> Stretches:
        """Stretches of these lengths that share nothing."""
        ends = list(accumulate(lengths))
        rows = [(end - length, length, 0, 0) for end, length in zip(ends, lengths, strict=True)]
        return cls(torch.tensor(rows), torch.arange(len(rows) + 1))

    @property
    def longest(self) -> tuple[int, int]:
        """Tokens of the longest trunk and of the longest stretch."""
        return int(self.table[:, 3].max()), int(self.table[:, 1].max())


def packed_attention(
    kernels: Library,
    queries: Float[Tensor, "S H D"],
    keys: Float[Tensor, "S K D"],
    values: Float[Tensor, "S K D"],
    stretches: Stretches,
    scale: float,
) -> Float[Tensor, "S H D"]:
    """softmax(scale q k^T) v, each token over its trunk and its own stretch up to itself."""
    size = queries.shape[-1]
    room = -size % kernels.lanes
    if room:
        queries, keys, values = (pad(tensor, (0, room)) for tensor in (queries, keys, values))
    out: Tensor = PackedAttention.apply(  # type: ignore[no-untyped-call]
        queries, keys, values, stretches, scale, kernels
    )
    return out[..., :size]


class PackedAttention(torch.autograd.Function):
    """`packed_attention` for heads whose size is a multiple of the machine's vectors."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Float[Tensor, "S H D"],
        keys: Float[Tensor, "S K D"],
        values: Float[Tensor, "S K D"],
        stretches: Stretches,
        scale: float,
        kernels: Library,
    ) -> Float[Tensor, "S H D"]:
        queries, keys, values = (_rows(tensor) for tensor in (queries, keys, values))
        out, norm = attend(kernels, (queries, keys, values), stretches, scale)
        ctx.save_for_backward(queries, keys, values, out, norm)
        ctx.rest = stretches, scale, kernels
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        queries, keys, values, out, norm = ctx.saved_tensors
        stretches, scale, kernels = ctx.rest
        heads = queries, keys, values
        found = attend_backward(kernels, heads, out, norm, _rows(gradient), stretches, scale)
        return *found, None, None, None


QueriesKeysValues = tuple[Tensor, Tensor, Tensor]
"""Queries [S, H, D], keys [S, K, D] and values [S, K, D], each head's D numbers side by side."""


def attend(
    kernels: Library, heads: QueriesKeysValues, stretches: Stretches, scale: float
) -> tuple[Float[Tensor, "S H D"], Float[Tensor, "S H"]]:
    """The attention's output, and the logsumexp of each query's scores; D is whole vectors."""
    out, norm = torch.empty(heads[0].shape), torch.empty(heads[0].shape[:2])
    _run(kernels, stretches, (*heads, out, None), norm, None, scale)
    return out, norm


def attend_backward(
    kernels: Library,
    heads: QueriesKeysValues,
    out: Float[Tensor, "S H D"],
    norm: Float[Tensor, "S H"],
    gradient: Float[Tensor, "S H D"],
    stretches: Stretches,
    scale: float,
) -> QueriesKeysValues:
    """The gradients of queries, keys and values from that of the output."""
    queries, keys, values = (torch.zeros(tensor.shape) for tensor in heads)
    found = queries, keys, values
    _run(kernels, stretches, (*heads, out, gradient), norm, found, scale)
    return found


def _run(
    kernels: Library,
    stretches: Stretches,
    tensors: tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None],
    norm: Tensor,
    gradients: tuple[Tensor, ...] | None,
    scale: float,
) -> None:
    """The forward pass, or the backward pass if there are tensors for gradients."""
    queries, keys = tensors[:2]
    threads, trunk, longest = torch.get_num_threads(), *stretches.longest
    size = queries.shape[-1]
    space = torch.empty(threads * kernels.attention_space(trunk, longest, size))
    what = _Attention(
        *(_heads(tensor) for tensor in tensors),
        norm.data_ptr(),
        *(tensor.data_ptr() for tensor in gradients or ()),
        *([None] * (0 if gradients else 3)),
        *(queries.shape[1], keys.shape[1], size, scale),
    )
    kernels.handle.polyopt_attention(
        ctypes.byref(what),
        ctypes.c_void_p(stretches.table.data_ptr()),
        ctypes.c_void_p(stretches.families.data_ptr()),
        *(ctypes.c_int64(n) for n in (len(stretches.families) - 1, trunk, longest)),
        *(int(gradients is not None), ctypes.c_void_p(space.data_ptr()), threads),
    )


def _heads(tensor: Tensor | None) -> _Heads:
    return _Heads() if tensor is None else _Heads(tensor.data_ptr(), *tensor.stride()[:2])


def _rows(tensor: Tensor) -> Tensor:
    """The tensor with each head's numbers side by side."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
