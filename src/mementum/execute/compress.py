"""Compress: what all share that write a data file anew: when to stop, against what, and which numbers it holds."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Protocol

from mementum.records import Block, Buffer, DataFile, StoredTensor

# Called between blocks. It may wait, and says why the work is not to go on, or None.
Pause = Callable[[], str | None]


class GaveUp(Exception):
    """The new file is not wanted. It ends a put in the middle, and leaves nothing behind."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Base(Protocol):
    """A file of the same raw stream's layout, that blocks may be coded against."""

    key: str

    def raw(self, number: int) -> Buffer:
        """The raw bytes of a block. UnknownFormat if it is damaged."""
        ...


def is_raw(file: DataFile) -> bool:
    """Whether it landed raw. One in which only some blocks are was compressed, and those did not shrink."""
    return bool(file.size) and all(block.codec == "raw" for block in file.blocks)


class Widths:
    """The width in bytes of the numbers in a file's blocks."""

    def __init__(self, tensors: Sequence[StoredTensor]) -> None:
        self._tensors = sorted((tensor for tensor in tensors if tensor.size), key=lambda tensor: tensor.offset)
        self._starts = [tensor.offset for tensor in self._tensors]
        self._place = 0  # in the raw stream

    def of_next(self, block: Block) -> int:
        """That of the block after the one that was asked for last."""
        begin, self._place = self._place, self._place + block.raw_size
        return self._of(begin, self._place)

    def of_all(self, file: DataFile) -> tuple[int, ...]:
        """Those of a file's blocks."""
        ends = itertools.accumulate(block.raw_size for block in file.blocks)
        return tuple(self._of(end - block.raw_size, end) for end, block in zip(ends, file.blocks, strict=True))

    def _of(self, begin: int, end: int) -> int:
        """That of most bytes between them: blocks of optimizers hold numbers of one width, those of weights may not."""
        bytes_of: dict[int, int] = {}
        for number in range(max(0, bisect_right(self._starts, begin) - 1), bisect_left(self._starts, end)):
            tensor = self._tensors[number]
            width = tensor.size // max(1, math.prod(tensor.shape))
            inside = min(end, tensor.offset + tensor.size) - max(begin, tensor.offset)
            if inside > 0:
                bytes_of[width] = bytes_of.get(width, 0) + inside
        return max((inside, width) for width, inside in bytes_of.items())[1] if bytes_of else 1
