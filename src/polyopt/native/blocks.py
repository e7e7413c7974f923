"""The parts of Llama-like blocks that aren't products, as functions on tensors (`blocks.c`)."""

from __future__ import annotations

import ctypes

import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor

from polyopt.native.library import Library, address

CHUNKS = 32
"""Runs of tokens by which sums over tokens go."""


class _Turning(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("query_heads", "key_heads", "dim", "room")),
        *((name, ctypes.c_double) for name in ("eps", "scaling")),
        *((name, ctypes.c_void_p) for name in ("query_norm", "key_norm", "rotary")),
    )


class BlockKernels:
    """Norms, gates and rotations, forward and backward.

    Tensors are contiguous float32. Activations may come from a record of more tokens: with
    `places`, token i is the record's row places[i].

    Args:
        library: The compiled kernels.
        query_heads: H.
        key_heads: K key-value heads.
        dim: D numbers in a head.
        eps: Of the norms.
        scaling: Of the scores; queries carry it.
    """

    def __init__(
        self,
        library: Library,
        *,
        query_heads: int,
        key_heads: int,
        dim: int,
        eps: float,
        scaling: float,
    ) -> None:
        self._c = library.handle
        self._eps = eps
        self._scaling = scaling
        self.query_heads, self.key_heads, self.dim = query_heads, key_heads, dim
        self.room = -(-dim // library.lanes) * library.lanes

    @property
    def heads(self) -> int:
        """Heads of queries, keys and values together."""
        return self.query_heads + 2 * self.key_heads

    def norm(
        self, x: Float[Tensor, "P H"], weight: Float[Tensor, " H"], places: Tensor | None = None
    ) -> Float[Tensor, "S H"]:
        """x / rms(x) * weight."""
        out = torch.empty(_count(x, places), x.shape[1])
        self._c.polyopt_norm(
            *(address(x), _places(places), *_sizes(*out.shape), address(weight)),
            *(ctypes.c_double(self._eps), address(out), _threads()),
        )
        return out

    def norm_backward_(
        self,
        x: Float[Tensor, "P H"],
        weight: Float[Tensor, " H"],
        slope: Float[Tensor, "S H"],
        gradient: Float[Tensor, "S H"],
        places: Tensor | None = None,
    ) -> Float[Tensor, " H"]:
        """Add to `gradient` what dL/dnorm says of x; returns dL/dweight."""
        width = x.shape[1]
        found, space = torch.empty(width), torch.empty(CHUNKS * width)
        self._c.polyopt_norm_backward(
            *(address(x), _places(places), *_sizes(*slope.shape), address(weight)),
            *(ctypes.c_double(self._eps), address(slope), address(gradient)),
            *(address(found), address(space), _threads()),
        )
        return found

    def gated(
        self, gate_up: Float[Tensor, "P 2F"], places: Tensor | None = None
    ) -> Float[Tensor, "S F"]:
        """silu(gate) * up."""
        out = torch.empty(_count(gate_up, places), gate_up.shape[1] // 2)
        self._c.polyopt_gated(
            *(address(gate_up), _places(places), *_sizes(*out.shape)), address(out), _threads()
        )
        return out

    def gated_backward_(
        self,
        gate_up: Float[Tensor, "P 2F"],
        slope: Float[Tensor, "S F"],
        places: Tensor | None = None,
    ) -> Float[Tensor, "S 2F"]:
        """dL/d(gate, up) from dL/d(silu(gate) * up), which that product's value replaces."""
        found = torch.empty(len(slope), gate_up.shape[1])
        self._c.polyopt_gated_backward(
            *(address(gate_up), _places(places), *_sizes(*slope.shape), address(slope)),
            *(address(found), _threads()),
        )
        return found

    def turn(
        self,
        qkv: Float[Tensor, "S H*D"],
        positions: Int[Tensor, " S"],
        rotary: Complex[Tensor, "T D/2"],
        norms: tuple[Tensor, Tensor] | None = None,
    ) -> Float[Tensor, "S H R"]:
        """Queries and keys turned by their positions, and values; heads padded to whole vectors."""
        heads = torch.empty(len(qkv), self.heads, self.room)
        self._c.polyopt_turn(
            ctypes.byref(self._turning(rotary, norms)),
            *(address(qkv), *_sizes(len(qkv)), _places(positions), address(heads), _threads()),
        )
        return heads

    def turn_backward(
        self,
        qkv: Float[Tensor, "P H*D"] | None,
        slopes: tuple[Tensor, Tensor, Tensor],
        positions: Int[Tensor, " S"],
        rotary: Complex[Tensor, "T D/2"],
        norms: tuple[Tensor, Tensor] | None = None,
        places: Tensor | None = None,
    ) -> tuple[Float[Tensor, "S H*D"], Float[Tensor, "2 D"] | None]:
        """dL/dqkv from those of queries, keys and values; and dL/d(query norm, key norm).

        `qkv`, what went into `turn`, is read only with norms.
        """
        tokens = len(slopes[0])
        found = torch.empty(tokens, self.heads * self.dim)
        space = torch.empty(CHUNKS * 2 * self.dim if norms else 0)
        norm_slopes = torch.empty(2, self.dim) if norms else None
        self._c.polyopt_turn_backward(
            ctypes.byref(self._turning(rotary, norms)),
            *(address(qkv), _places(places), *_sizes(tokens), _places(positions)),
            *(address(slope) for slope in slopes),
            *(address(found), address(norm_slopes), address(space), _threads()),
        )
        return found, norm_slopes

    def _turning(self, rotary: Tensor, norms: tuple[Tensor, Tensor] | None) -> _Turning:
        sizes = (self.query_heads, self.key_heads, self.dim, self.room, self._eps, self._scaling)
        return _Turning(*sizes, *map(address, norms or (None, None)), rotary.data_ptr())


def _count(x: Tensor, places: Tensor | None) -> int:
    return len(x if places is None else places)


def _places(places: Tensor | None) -> ctypes.c_void_p:
    return address(places, torch.int64)


def _sizes(*sizes: int) -> list[ctypes.c_int64]:
    return [ctypes.c_int64(size) for size in sizes]


def _threads() -> int:
    return torch.get_num_threads()
