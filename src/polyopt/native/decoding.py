"""Decoding steps in C: the structs of `decode.c`, and its functions on tensors and arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor

from polyopt.models.activations import Activations, LayerActivations
from polyopt.native.library import Library

Integers = npt.NDArray[np.int64]
_Address = ctypes.c_void_p
_Int = ctypes.c_int64


class WeightStruct(ctypes.Structure):
    """A packed weight and its bias."""

    _fields_ = (("panels", _Address), ("bias", _Address), ("inputs", _Int), ("outputs", _Int))


class LayerStruct(ctypes.Structure):
    """One block."""

    _fields_ = (
        *((name, _Address) for name in ("input_norm", "mlp_norm", "head_norm")),
        *((name, WeightStruct) for name in ("qkv", "out", "gate", "up", "down")),
    )


class ModelStruct(ctypes.Structure):
    """The whole model."""

    _fields_ = (
        *((n, _Int) for n in ("layers", "hidden", "query_heads", "key_heads", "head_dim")),
        ("intermediate", _Int),
        ("eps", ctypes.c_double),
        ("scaling", ctypes.c_double),
        ("embedding", _Address),
        ("norm", _Address),
        ("blocks", ctypes.POINTER(LayerStruct)),
        ("head", WeightStruct),
    )


class BatchStruct(ctypes.Structure):
    """The rows that take a step."""

    _fields_ = (
        *((name, _Int) for name in ("rows", "tiles", "most_rows", "most_columns")),
        *((name, _Address) for name in ("tokens", "order", "starts", "sequences", "rotary")),
        *((name, _Address) for name in ("record", "places")),
    )


class LayerRecordStruct(ctypes.Structure):
    """Where the activations of one block are kept."""

    _fields_ = tuple((field.name, _Address) for field in fields(LayerActivations))


class RecordStruct(ctypes.Structure):
    """Where the activations of all blocks are kept; what the struct points to must stay alive."""

    _fields_ = (("layers", ctypes.POINTER(LayerRecordStruct)), ("last", _Address))

    @classmethod
    def of(cls, activations: Activations) -> RecordStruct:
        """The struct of these tensors."""
        blocks = [
            LayerRecordStruct(*(_at(getattr(layer, field.name)) for field in fields(layer)))
            for layer in activations.layers
        ]
        layers = (LayerRecordStruct * len(blocks))(*blocks)
        return cls(ctypes.cast(layers, ctypes.POINTER(LayerRecordStruct)), _at(activations.last))


class Keeping(NamedTuple):
    """Where the rows' activations of a step go: each row's place in a record, or -1."""

    record: RecordStruct
    places: Integers


class Tiles(NamedTuple):
    """Rows of a prompt side by side: tile t holds `order[starts[t] : starts[t + 1]]`."""

    order: Integers
    starts: Integers


class Decoding:
    """Steps of one model; the tensors that the model's struct points to must stay alive."""

    def __init__(self, library: Library, layers: int, heads: int, dim: int) -> None:
        self._c = library.handle
        self.page = int(self._c.polyopt_page_positions())
        sizes = (_Int(layers), _Int(heads), _Int(dim))
        self.page_floats = int(self._c.polyopt_page_floats(*sizes))
        self._work = torch.empty(0)

    def write(
        self, pages: Integers, layer: int, keys: Float[Tensor, "K L D"], values: Tensor
    ) -> None:
        """Keys and values of one layer at the start of a sequence with these pages."""
        heads, count, dim = keys.shape
        keys, values = keys.contiguous(), values.contiguous()
        self._c.polyopt_write_pages(
            _Address(pages.ctypes.data),
            *(_Int(size) for size in (layer, heads, count, dim)),
            _Address(keys.data_ptr()),
            _Address(values.data_ptr()),
        )

    def step(
        self,
        model: ModelStruct,
        tokens: Sequence[int] | Integers,
        sequences: Integers,
        tiles: Tiles,
        columns: int,
        rotary: Tensor,
        logits: Float[Tensor, "R V"],
        keeping: Keeping | None = None,
    ) -> None:
        """Write logits after one more token of each sequence, whose pages have room for it.

        Args:
            model: The weights.
            tokens: The new tokens.
            sequences: Address of the prompt's pages, address of the completion's, length of the
                prompt, length of the completion so far [R, 4].
            tiles: The rows by prompts.
            columns: Most positions of a row, in whole pages.
            rotary: Cosines and sines of the positions.
            logits: Where to write.
            keeping: Where to keep activations, if anybody wants them.
        """
        ids = np.asarray(tokens, dtype=np.int64)
        arrays: tuple[Any, ...] = (ids, tiles.order, tiles.starts, sequences)
        most = int(np.diff(tiles.starts).max())
        addresses = (array.ctypes.data for array in arrays)
        sizes = (len(ids), len(tiles.starts) - 1, most, columns)
        batch = BatchStruct(*sizes, *addresses, rotary.data_ptr())
        if keeping is not None:
            batch.record = ctypes.addressof(keeping.record)
            batch.places = keeping.places.ctypes.data
        threads = torch.get_num_threads()
        at = (ctypes.byref(model), ctypes.byref(batch))
        floats = int(self._c.polyopt_step_floats(*at, threads))
        if floats > len(self._work):
            self._work = torch.empty(floats)
        out = (_Address(self._work.data_ptr()), _Address(logits.data_ptr()))
        self._c.polyopt_step(*at, *out, threads)


def _at(tensor: Tensor | None) -> int | None:
    assert tensor is None or tensor.is_contiguous()
    return None if tensor is None else tensor.data_ptr()
