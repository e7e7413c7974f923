"""What the backward pass of Llama-like blocks needs of the forward pass."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class LayerActivations:
    """Of one block, for P tokens.

    Attributes:
        entered: The residual stream before the block.
        qkv: Queries, keys and values before their norm; None for models without.
        heads: Turned queries (scaled) and keys, and values, each padded to whole vectors.
        norm: Logsumexp of each query's scores.
        attended: Output of attention, before its projection.
        between: The residual stream between attention and the gated MLP.
        gate_up: What the gate and up projections give, side by side.
    """

    entered: Float[Tensor, "P H"]
    qkv: Float[Tensor, "P A"] | None
    heads: Float[Tensor, "P N R"]
    norm: Float[Tensor, "P Q"]
    attended: Float[Tensor, "P Q*D"]
    between: Float[Tensor, "P H"]
    gate_up: Float[Tensor, "P 2F"]


@dataclass(frozen=True)
class Activations:
    """Of all blocks.

    Attributes:
        layers: One after the other; a backward pass takes them away from the end.
        last: The residual stream after the last block.
        places: Row of each of the S tokens in the tensors, where they hold more tokens or in
            another order.
    """

    layers: list[LayerActivations]
    last: Float[Tensor, "P H"]
    places: Int[Tensor, " S"] | None = None
