"""Byte planes: the first bytes of all numbers, then the second bytes, so that like lies beside like."""

from __future__ import annotations

import numpy as np

from mementum.errors import UnknownFormat, UsageError
from mementum.records import Buffer

WIDTHS = ("1", "2", "4", "8", "16")  # bytes of the numbers that torch knows


class Planes:
    """Splits numbers of `width` bytes into planes; a rest that is no whole number follows as it is."""

    keeps_size = True

    def __init__(self, *parameters: str) -> None:
        if len(parameters) != 1 or parameters[0] not in WIDTHS:
            raise UsageError(f"codec planes takes one of the widths {', '.join(WIDTHS)}, got {':'.join(parameters)!r}")
        self.width = int(parameters[0])
        self.spec = f"planes:{self.width}"

    def encode(self, raw: Buffer) -> Buffer:
        source = np.frombuffer(raw, np.uint8)
        whole = len(source) - len(source) % self.width
        target = np.empty_like(source)
        target[:whole].reshape(self.width, -1)[:] = source[:whole].reshape(-1, self.width).T
        target[whole:] = source[whole:]
        return target.data

    def decode(self, stored: Buffer, raw_size: int) -> Buffer:
        if len(stored) != raw_size:
            raise UnknownFormat(f"planes of {raw_size} bytes have {len(stored)}")
        source = np.frombuffer(stored, np.uint8)
        whole = raw_size - raw_size % self.width
        target = np.empty_like(source)
        target[:whole].reshape(-1, self.width)[:] = source[:whole].reshape(self.width, -1).T
        target[whole:] = source[whole:]
        return target.data
