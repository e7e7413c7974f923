"""The C kernels as functions on tensors."""

from __future__ import annotations

import ctypes
import functools
import os

import numpy as np
import torch
from jaxtyping import Float, Int
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
            "polyopt_lanes",
            "polyopt_step_floats",
            "polyopt_page_positions",
            "polyopt_page_floats",
            "polyopt_attention_space",
        ):
            if hasattr(handle, name):
                getattr(handle, name).restype = ctypes.c_int64
        self.lanes = int(handle.polyopt_lanes())

    def attention_space(self, longest_trunk: int, longest: int, size: int) -> int:
        """Numbers of scratch that packed attention takes for each thread."""
        lengths = _int(longest_trunk), _int(longest)
        return int(self._c.polyopt_attention_space(*lengths, _int(size)))

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
            address(weight.contiguous()), _int(outputs), _int(inputs), address(packed), _threads()
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
            address(inputs),
            _int(rows),
            address(packed),
            address(bias),
            _int(width),
            _int(outputs),
            address(out),
            _threads(),
        )
        return out

    def softmax_sums_(
        self,
        sums: Float[Tensor, "R 4"],
        logits: Float[Tensor, "R C"],
        first: int,
        targets: Int[Tensor, " R"],
        temperature: float,
        *,
        weighted: bool,
    ) -> None:
        """Take columns `first`.. of logits / temperature into the rows' softmax sums.

        The float64 sums of a row are its largest entry (at first -inf), the sum of the weights
        w = exp(entry - largest), the sum of (entry - largest) w if `weighted`, and the entry of
        the target (at first 0).
        """
        self._c.polyopt_softmax_sums(
            *(address(logits), _int(len(logits)), _int(logits.shape[1]), _int(first)),
            address(targets, torch.int64),
            *(
                ctypes.c_float(1 / temperature),
                int(weighted),
                address(sums, torch.float64),
                _threads(),
            ),
        )

    def softmax_gradient_(
        self,
        logits: Float[Tensor, "R C"],
        first: int,
        targets: Int[Tensor, " R"],
        temperature: float,
        norm: Float[Tensor, " R"],
        entropies: Float[Tensor, " R"] | None,
        grad_logp: Float[Tensor, " R"] | None,
        grad_entropy: Float[Tensor, " R"] | None,
    ) -> None:
        """dL/dlogits in place of columns `first`.. of the logits.

        From the rows' logsumexp of logits / temperature, their entropies, and the gradients of the
        targets' log-probabilities and of the entropies.
        """
        self._c.polyopt_softmax_gradient(
            *(address(logits), _int(len(logits)), _int(logits.shape[1]), _int(first)),
            address(targets, torch.int64),
            *(ctypes.c_float(1 / temperature), address(norm), address(entropies)),
            *(address(grad_logp), address(grad_entropy), _threads()),
        )

    def draw(
        self,
        logits: Float[Tensor, "R V"],
        temperature: float,
        uniforms: Float[Tensor, " R"],
        *,
        entropy: bool,
    ) -> tuple[Int[Tensor, " R"], Float[Tensor, " R"], Float[Tensor, " R"] | None]:
        """A token per row by inverse transform, its log-probability, and the row's entropy.

        Temperature 0 takes the most likely token and its log-probability at temperature 1. A row
        whose logits aren't all finite (-inf apart) gets token -1.
        """
        scale = np.float32(1) / np.float32(temperature) if temperature > 0 else 0.0
        scales = torch.full((len(logits),), float(scale))
        tokens = torch.empty(len(logits), dtype=torch.long)
        logp = torch.empty(len(logits), dtype=torch.float64)
        entropies = torch.empty_like(logp) if entropy else None
        self._c.polyopt_draw(
            *(address(logits), _int(len(logits)), _int(logits.shape[1]), address(scales)),
            address(uniforms, torch.float64),
            *(address(tokens, torch.int64), address(logp, torch.float64)),
            *(address(entropies, torch.float64), _threads()),
        )
        return tokens, logp, entropies


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


def kernels_for(*tensors: Tensor) -> Library | None:
    """The kernels, where they can compute with these: float32 on the CPU, all of them."""
    plain = all(t.device.type == "cpu" and t.dtype == torch.float32 for t in tensors)
    return native() if plain else None


def _int(value: int) -> ctypes.c_int64:
    return ctypes.c_int64(value)


def address(tensor: Tensor | None, dtype: torch.dtype = torch.float32) -> ctypes.c_void_p:
    """Address of a tensor's numbers, NULL for None; a kernel that expects others would read on."""
    if tensor is None:
        return ctypes.c_void_p(None)
    if tensor.dtype != dtype or tensor.device.type != "cpu":
        raise TypeError(f"a kernel for {dtype} on the CPU got {tensor.dtype} on {tensor.device}")
    return ctypes.c_void_p(tensor.data_ptr())


def _threads() -> int:
    return torch.get_num_threads()
