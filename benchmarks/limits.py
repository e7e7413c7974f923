"""What this machine can do at most: bytes read and floating-point operations per second."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from harness import seconds
from torch import Tensor

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
TRIES = 7


def bandwidth(clock: str = "wall", quick: bool = False) -> float:
    """Bytes per second of reading memory: the best of streaming kernels over a large matrix.

    The matrix is four times the last cache, but at most 2 GB: on virtual machines the reported
    cache is the whole socket's.
    """
    size = 16 << 20 if quick else min(max(4 * last_cache(), 256 << 20), 2 << 30)
    matrix = torch.ones(size // 4 // 4096, 4096)
    vector, flat = torch.ones(4096), matrix.flatten()
    calls = (lambda: matrix @ vector, lambda: torch.dot(flat, flat), flat.sum)
    with torch.inference_mode():
        # The dot product of a vector with itself reads it once.
        return matrix.nbytes / best(calls, clock)


def product_rate(
    shapes: Sequence[tuple[int, int, int]], clock: str = "wall", quick: bool = False
) -> float:
    """FLOP per second of the fastest float32 product here, over shapes (M, K, N) and libraries.

    The libraries are torch's default (MKL) and oneDNN, on plain and on reordered weights.
    """
    square = (256, 256, 256) if quick else (2048, 2048, 2048)
    with torch.inference_mode():
        return max(_rate(shape, clock) for shape in {*shapes, square})


def _rate(shape: tuple[int, int, int], clock: str) -> float:
    rows, inner, columns = shape
    inputs, weight = torch.randn(rows, inner), torch.randn(columns, inner)
    turned = weight.t().contiguous()
    calls: list[Callable[[], Any]] = [
        lambda: torch.mm(inputs, turned),
        lambda: torch.mm(inputs, weight.t()),
    ]
    calls += onednn_products(inputs, weight)
    return 2 * rows * inner * columns / best(calls, clock)


def onednn_products(inputs: Tensor, weight: Tensor) -> list[Callable[[], Any]]:
    """inputs @ weight^T by oneDNN, if this build of torch has it."""
    try:
        reordered = torch.ops.mkldnn._reorder_linear_weight(weight, len(inputs))
    except (AttributeError, RuntimeError):
        return []
    linear = torch.ops.mkldnn._linear_pointwise
    return [
        lambda: linear(inputs, weight, None, "none", [], ""),
        lambda: linear(inputs, reordered, None, "none", [], ""),
    ]


def best(calls: Sequence[Callable[[], Any]], clock: str) -> float:
    """Shortest time of any of the calls, in turns, after a warm-up."""
    for call in calls:
        call()
    return min(seconds(call, clock) for _ in range(TRIES) for call in calls)


def last_cache() -> int:
    """Bytes of the largest processor cache; 64 MB where the system doesn't say."""
    sizes = [_bytes(path.read_text()) for path in CACHES.glob("index*/size")]
    return max(sizes, default=64 << 20)


def _bytes(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([KMG]?)", text.strip()).groups()  # type: ignore[union-attr]
    return int(number) << {"": 0, "K": 10, "M": 20, "G": 30}[unit]


def layer_shapes(config: Any, rows: int) -> list[tuple[int, int, int]]:
    """The model's own products at so many rows: MLP up and down, attention output, LM head."""
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes = [(rows, hidden, 2 * inner), (rows, inner, hidden), (rows, hidden, hidden)]
    return [*shapes, (rows, hidden, min(config.vocab_size, 16384))]


def weights_read(model: Any) -> int:
    """Weights that one decoding step reads: all but an embedding that isn't the LM head."""
    embedding = model.get_input_embeddings().weight
    tied = model.get_output_embeddings().weight is embedding
    total = sum(p.numel() for p in model.parameters())
    return int(total if tied else total - embedding.numel())
