"""The C kernels as functions on tensors."""

from __future__ import annotations

import ctypes
import functools
import os

import torch
from jaxtyping import Float
from torch import Tensor

from polyopt.native.build import compiled

OFF = "POLYOPT_NATIVE"
"""Environment variable; `0` turns the kernels off."""


class Library:
    """Float32 kernels for the CPU; tensors must be contiguous, on the CPU, and of the right type.

    What a kernel computes doesn't depend on the number of threads.
    """

    def __init__(self, handle: ctypes.CDLL) -> None:
        self.handle = self._c = handle
        for name in (
            "polyopt_packed_size",
            "polyopt_amx_words",
            "polyopt_lanes",
            "polyopt_step_floats",
            "polyopt_page_positions",
            "polyopt_page_floats",
        ):
            if hasattr(handle, name):
                getattr(handle, name).restype = ctypes.c_int64
        self.has_amx = bool(handle.polyopt_has_amx())
        self._space = torch.empty(0, dtype=torch.int32)

    def packed_size(self, weight: Float[Tensor, "O I"]) -> int:
        """Numbers that the packed weight takes."""
        outputs, inputs = weight.shape
        return int(self._c.polyopt_packed_size(_int(outputs), _int(inputs)))

    def pack(
        self, weight: Float[Tensor, "O I"], into: Float[Tensor, " P"] | None = None
    ) -> Float[Tensor, " P"]:
        """A weight in the layout that `product` and decoding steps read."""
        outputs, inputs = weight.shape
        packed = torch.empty(self.packed_size(weight)) if into is None else into
        self._c.polyopt_pack(
            _at(weight.contiguous()), _int(outputs), _int(inputs), _at(packed), _threads()
        )
        return packed

    def product(
        self,
        inputs: Float[Tensor, "R I"],
        packed: Float[Tensor, " P"],
        bias: Float[Tensor, " O"] | None,
        outputs: int,
    ) -> Float[Tensor, "R O"]:
        """inputs @ weight^T + bias, for a packed weight; meant for few rows."""
        rows, width = inputs.shape
        out = torch.empty(rows, outputs)
        self._c.polyopt_product(
            _at(inputs),
            _int(rows),
            _at(packed),
            _at(bias),
            _int(width),
            _int(outputs),
            _at(out),
            _threads(),
        )
        return out


@functools.cache
def native() -> Library | None:
    """The kernels, or None: turned off, no compiler, or they don't run here."""
    if os.environ.get(OFF) == "0":
        return None
    path = compiled()
    if path is None:
        return None
    try:
        return Library(ctypes.CDLL(str(path)))
    except (OSError, AttributeError):
        return None


def _int(value: int) -> ctypes.c_int64:
    return ctypes.c_int64(value)


def _at(tensor: Tensor | None) -> ctypes.c_void_p:
    """Address of a tensor's numbers, NULL for None."""
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


def _threads() -> int:
    return torch.get_num_threads()
