"""Delta: the difference of numbers from those of a base, small where training has moved them little."""

from __future__ import annotations

from typing import Any

import numpy as np

from mementum.records import Buffer

Numbers = np.ndarray[Any, np.dtype[Any]]


class Delta:
    """Takes bytes for integers of `width` bytes and subtracts those of the base, modulo their range, so that any bytes
    come back. The differences are folded: 0, -1, 1, -2 become 0, 1, 2, 3 (the zigzag of protocol buffers), so that
    small ones of both signs have zeros in their upper bytes. A rest that is no whole number follows as it is."""

    def __init__(self, width: int) -> None:
        self._unsigned, self._signed = np.dtype(f"<u{width}"), np.dtype(f"<i{width}")
        self._width = width

    def encode(self, raw: Buffer, base: Buffer) -> memoryview:
        """`base` has the size of `raw`."""
        source, whole, target = self._cut(raw, base)
        difference = (source[0] - source[1]).view(self._signed)
        folded = (difference << 1) ^ (difference >> (8 * self._width - 1))
        target[:whole] = folded.view(np.uint8)
        return target.data

    def decode(self, stored: Buffer, base: Buffer) -> memoryview:
        """What was encoded against the same base."""
        source, whole, target = self._cut(stored, base)
        one = np.ones((), self._unsigned)
        difference = (source[0] >> one) ^ (~(source[0] & one) + one)
        target[:whole] = (difference + source[1]).view(np.uint8)
        return target.data

    def _cut(self, data: Buffer, base: Buffer) -> tuple[tuple[Numbers, Numbers], int, Numbers]:
        plain = np.frombuffer(data, np.uint8)
        whole = len(plain) - len(plain) % self._width
        numbers = np.frombuffer(data, self._unsigned, whole // self._width)
        target = np.empty_like(plain)
        target[whole:] = plain[whole:]
        return (numbers, np.frombuffer(base, self._unsigned, whole // self._width)), whole, target
