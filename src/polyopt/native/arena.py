"""Memory that is handed out in pieces and used again for the same pieces in the same order."""

from __future__ import annotations

import ctypes
import mmap
import sys

import torch
from jaxtyping import Float
from torch import Tensor

BLOCK = 16 << 20
"""Floats of a block."""
PAGE = 2 << 20
"""Bytes of a huge page."""


class Arena:
    """Pieces of float32 memory, which begin at multiples of 64 bytes."""

    def __init__(self) -> None:
        self._blocks: list[Tensor] = []
        self.rewind()

    def rewind(self) -> None:
        """Hand out the same pieces again."""
        self._block = self._used = 0

    def free(self) -> None:
        """Give the memory back; nothing that was handed out may be used any more."""
        self._blocks = []
        self.rewind()

    def take(self, count: int) -> Float[Tensor, " P"]:
        """The next piece."""
        while self._block < len(self._blocks):
            block = self._blocks[self._block]
            if self._used + count <= len(block):
                piece = block[self._used : self._used + count]
                self._used += -(-count // 16) * 16
                return piece
            self._block, self._used = self._block + 1, 0
        self._blocks.append(in_huge_pages(torch.empty(max(count, BLOCK))))
        return self.take(count)


def in_huge_pages(tensor: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
    """The tensor, in huge pages where the system has them: it is read faster then."""
    if sys.platform.startswith("linux"):
        begin = -(-tensor.data_ptr() // PAGE) * PAGE
        end = (tensor.data_ptr() + 4 * len(tensor)) // PAGE * PAGE
        if end > begin:
            size = ctypes.c_size_t(end - begin)
            ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), size, mmap.MADV_HUGEPAGE)
    return tensor
