"""The weights of a Llama-like model for the C kernels."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from polyopt.engines.fast_projection import Projection
from polyopt.engines.fast_weights import LayerWeights, Weights, read_weights
from polyopt.models.llama_like import Geometry
from polyopt.native.arena import Arena
from polyopt.native.decoding import LayerStruct, ModelStruct, WeightStruct
from polyopt.native.library import Library


@dataclass(frozen=True)
class PackedProjection:
    """A linear layer on a packed copy of the weight."""

    kernels: Library
    packed: Float[Tensor, " P"]
    bias: Float[Tensor, " O"] | None
    inputs: int
    outputs: int

    def __call__(self, inputs: Float[Tensor, "R I"]) -> Float[Tensor, "R O"]:
        """weight @ input + bias for each row."""
        return self.kernels.product(inputs.contiguous(), self.packed, self.bias, self.outputs)

    @property
    def struct(self) -> WeightStruct:
        """What C reads."""
        return WeightStruct(self.packed.data_ptr(), _at(self.bias), self.inputs, self.outputs)


class NativeWeights:
    """Packed weights, in memory that is kept from one reading to the next."""

    def __init__(self, kernels: Library, geometry: Geometry) -> None:
        self._kernels = kernels
        self._geometry = geometry
        self._arena = Arena()
        self.weights: Weights
        self.struct: ModelStruct

    def read(self, model: PreTrainedModel) -> None:
        """Copy the model's weights as they are now."""
        self._arena.rewind()
        self.weights = read_weights(model, self._project)
        self.struct = self._model()

    def _project(self, weight: Tensor, bias: Tensor | None) -> PackedProjection:
        outputs, inputs = weight.shape
        packed = self._arena.take(self._kernels.packed_size(weight))
        return PackedProjection(
            self._kernels, self._kernels.pack(weight, packed), bias, inputs, outputs
        )

    def _model(self) -> ModelStruct:
        weights, geometry = self.weights, self._geometry
        blocks = (LayerStruct * geometry.layers)(*map(_layer, weights.layers))
        return ModelStruct(
            geometry.layers,
            weights.embedding.shape[1],
            geometry.query_heads,
            geometry.key_heads,
            geometry.head_dim,
            _struct(weights.layers[0].gate).outputs,
            geometry.norm_eps,
            geometry.scaling,
            _at(weights.embedding),
            _at(weights.norm),
            ctypes.cast(blocks, ctypes.POINTER(LayerStruct)),
            _struct(weights.head),
        )


def _layer(block: LayerWeights) -> LayerStruct:
    norms = (_at(one) for one in (block.input_norm, block.mlp_norm, block.head_norm))
    parts = (block.qkv, block.out, block.gate, block.up, block.down)
    return LayerStruct(*norms, *map(_struct, parts))


def _struct(projection: Projection) -> WeightStruct:
    assert isinstance(projection, PackedProjection)
    return projection.struct


def _at(tensor: Tensor | None) -> int | None:
    """Address of the tensor's numbers."""
    assert tensor is None or tensor.is_contiguous()
    return None if tensor is None else tensor.data_ptr()
