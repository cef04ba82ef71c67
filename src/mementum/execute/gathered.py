"""A file's raw stream that stands nowhere in memory: every piece is put together from live tensors when it is read."""

from __future__ import annotations

import mmap
import threading
from bisect import bisect_right
from collections.abc import Iterator
from itertools import chain

import numpy as np
import torch
import xxhash

from mementum.execute.plan import FileLayout
from mementum.execute.structure import SAMPLE, Bytes, Reading, Spot
from mementum.format.blocks import BLOCK
from mementum.live.tree import as_bytes


class Gathered:
    """The stream of file number `file` of a reading. It holds the tensors, and is of their bytes as they are when a
    piece is read. Pieces are on page boundaries, and belong to the reader."""

    def __init__(self, layout: FileLayout, reading: Reading, file: int) -> None:
        self.layout = layout
        held = sorted(
            (
                (spot, tensor)
                for spot, tensor in zip(reading.spots, reading.tensors, strict=True)
                if spot.file == file and spot.stop > spot.start
            ),
            key=lambda item: item[0].start,
        )
        self._spots = [spot for spot, _ in held]
        self._tensors = [tensor for _, tensor in held]
        # A parameter may be given other memory meanwhile; what was its memory is held as well.
        self._storages = [tensor.untyped_storage() for tensor in self._tensors]
        self._places = [storage.data_ptr() for storage in self._storages]
        self._versions = [tensor._version for tensor in self._tensors]
        self._heads = [self._head(number) for number in range(len(held))]
        self._starts = [spot.start for spot in self._spots]
        self._lock = threading.Lock()
        self._digests: tuple[str, ...] | None = None

    def _head(self, number: int) -> bytes:
        spot = self._spots[number]
        return spot.source()[:SAMPLE].tobytes() if spot.address else b""

    def __getitem__(self, piece: slice, /) -> memoryview:
        start, stop, _ = piece.indices(self.layout.raw_size)
        out = np.frombuffer(mmap.mmap(-1, max(1, stop - start)), np.uint8)[: stop - start]
        head = self.layout.header[start:stop]
        out[: len(head)] = np.frombuffer(head, np.uint8)
        first = max(0, bisect_right(self._starts, start) - 1)
        for spot, tensor in zip(self._spots[first:], self._tensors[first:], strict=True):
            if spot.start >= stop:
                break
            begin, end = max(start, spot.start), min(stop, spot.stop)
            if begin < end:
                source = _bytes_of(spot, tensor)
                out[begin - start : end - start] = source[begin - spot.start : end - spot.start]
        return out.data

    def digests(self) -> tuple[str, ...]:
        """Of the stream's blocks, as an index has them: made once, without a copy of the tensors."""
        with self._lock:
            if self._digests is None:
                self._digests = tuple(self._made())
            return self._digests

    def _made(self) -> Iterator[str]:
        hasher, filled = xxhash.xxh3_128(), 0
        header = np.frombuffer(self.layout.header, np.uint8)
        fetched = (_bytes_of(spot, tensor) for spot, tensor in zip(self._spots, self._tensors, strict=True))
        for source in chain((header,), fetched):
            done = 0
            while done < source.size:
                piece = source[done : done + BLOCK - filled]
                hasher.update(piece.data)
                done, filled = done + piece.size, filled + piece.size
                if filled == BLOCK:
                    yield hasher.hexdigest()
                    hasher, filled = xxhash.xxh3_128(), 0
        if filled:
            yield hasher.hexdigest()

    def changed(self) -> str | None:
        """The name of a tensor that was written since, as far as torch has counted it or its head shows it; None if
        none was."""
        for number, (spot, tensor) in enumerate(zip(self._spots, self._tensors, strict=True)):
            moved = self._storages[number].data_ptr() != self._places[number]
            moved = moved or (spot.address != 0 and tensor.data_ptr() != spot.address)
            if moved or tensor._version != self._versions[number] or self._head(number) != self._heads[number]:
                return spot.name
        return None

    @property
    def names(self) -> tuple[tuple[str, str], ...]:
        """Component and name of its tensors."""
        return tuple((spot.component, spot.key) for spot in self._spots)


def _bytes_of(spot: Spot, tensor: torch.Tensor) -> Bytes:
    if spot.address:
        return spot.source()
    fetched: Bytes = as_bytes(tensor).numpy()
    return fetched
