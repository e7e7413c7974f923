"""Memory that is handed out in pieces and used again for the same pieces in the same order."""

from __future__ import annotations

import mmap

import torch
from jaxtyping import Float
from torch import Tensor

BLOCK = 64 << 20
"""Bytes of a block, in huge pages where the system has them: reading weights is faster then."""


class Arena:
    """Pieces of float32 memory, which begin at multiples of 64 bytes."""

    def __init__(self) -> None:
        self._blocks: list[Tensor] = []
        self.rewind()

    def rewind(self) -> None:
        """Hand out the same pieces again."""
        self._block = self._used = 0

    def take(self, count: int) -> Float[Tensor, " P"]:
        """The next piece."""
        while self._block < len(self._blocks):
            block = self._blocks[self._block]
            if self._used + count <= len(block):
                piece = block[self._used : self._used + count]
                self._used += -(-count // 16) * 16
                return piece
            self._block, self._used = self._block + 1, 0
        self._blocks.append(lazy_memory(max(count, BLOCK // 4)))
        return self.take(count)


def lazy_memory(count: int) -> Float[Tensor, " B"]:
    """Zeros that take memory when they are first touched."""
    memory = mmap.mmap(-1, 4 * max(count, 1))
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.float32)
