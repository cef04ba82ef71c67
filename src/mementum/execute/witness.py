"""Witness: what tensors were when their copy was asked for, so that a copy which something overtook is found."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch

from mementum.execute.structure import SAMPLE, Bytes, Spot
from mementum.format.blocks import digest
from mementum.records import record

LINE = 64  # bytes that are gathered at once, where a tensor lies and ends so: torch aligns its memory to as many


class Watched:
    """Tensors in memory, with the views that a copy of them and a look at them need: made once for a structure."""

    def __init__(self, spots: Sequence[Spot]) -> None:
        self.spots = tuple(spots)
        self._heads = Heads(spots)
        self._addresses = [spot.address for spot in spots]

    @cached_property
    def sources(self) -> tuple[Bytes, ...]:
        return tuple(spot.source() for spot in self.spots)

    def lie_there(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether each tensor lies where its spot says."""
        return [tensor.data_ptr() for tensor in tensors] == self._addresses

    def sample(self) -> Bytes:
        """The heads of all tensors, one after the other."""
        return self._heads.gathered()

    @property
    def order(self) -> tuple[int, ...]:
        """The numbers of the tensors, in the order in which a sample has their heads."""
        return self._heads.order

    def heads_in(self, targets: Sequence[Bytes]) -> list[Bytes]:
        """The heads of copies of the tensors, in the same order."""
        return [targets[number][:SAMPLE] for number in self.order]


class Heads:
    """The first bytes of many tensors, gathered by one call: a view of each would have to be fetched from memory, too.

    Indexes are counted from the lowest address. Nothing between the tensors is ever touched."""

    def __init__(self, spots: Sequence[Spot]) -> None:
        sizes = [min(spot.stop - spot.start, SAMPLE) for spot in spots]
        low = min((spot.address for spot in spots), default=0) // LINE * LINE
        high = max((spot.address + size for spot, size in zip(spots, sizes, strict=True)), default=0)
        placed = [(spot.address - low, size) for spot, size in zip(spots, sizes, strict=True)]
        by_line = [offset % LINE == size % LINE == 0 for offset, size in placed]
        self.order = tuple(sorted(range(len(spots)), key=lambda number: not by_line[number]))
        self._lines = _indexes([place for place, whole in zip(placed, by_line, strict=True) if whole], LINE)
        self._bytes = _indexes([place for place, whole in zip(placed, by_line, strict=True) if not whole], 1)
        memory = np.empty(0, np.uint8)
        if spots:
            memory = np.frombuffer(memoryview((ctypes.c_uint8 * (high - low)).from_address(low)).cast("B"), np.uint8)
        self._by_byte = memory
        self._by_line = memory[: memory.size // LINE * LINE].view(f"V{LINE}")

    def gathered(self) -> Bytes:
        lines = self._by_line.take(self._lines).view(np.uint8)
        return np.concatenate((lines, self._by_byte.take(self._bytes))) if self._bytes.size else lines


@record
class Witness:
    """torch's counts of changes, and a part of the bytes; with `digests`, all of them.

    The counts see every change in place but those through `.data` and of some fused kernels; the bytes see those."""

    tensors: tuple[torch.Tensor, ...]
    versions: list[int]
    sample: Bytes
    digests: tuple[str, ...] | None


@record
class Held:
    """The memory of the tensors, which must be held before it is read: a tensor may be given another one meanwhile."""

    storages: tuple[torch.UntypedStorage, ...]
    places: tuple[int, ...]  # a storage that is shared or resized gives its place up


def witness(watched: Watched, tensors: Sequence[torch.Tensor], *, verify: bool) -> Witness:
    """What the tensors are now."""
    return Witness(
        tensors=tuple(tensors),
        versions=_versions(tensors),
        sample=watched.sample(),
        digests=tuple(digest(source.data) for source in watched.sources) if verify else None,
    )


def hold(tensors: Sequence[torch.Tensor]) -> Held:
    """Take hold of their memory. Whether they still lie where they were read to lie must be seen after this."""
    storages = tuple([tensor.untyped_storage() for tensor in tensors])
    return Held(storages=storages, places=tuple([storage.data_ptr() for storage in storages]))


def what_happened(before: Witness, held: Held, watched: Watched, targets: Sequence[Bytes]) -> str | None:
    """Why the copy in `targets` is not of the tensors as they were, or None."""
    if tuple([storage.data_ptr() for storage in held.storages]) != held.places:
        return "the memory of a tensor was moved (shared with a process, or resized) while it was copied"
    versions = _versions(before.tensors)
    heads = watched.heads_in(targets)
    same = versions == before.versions and np.array_equal(before.sample, _joined(heads))
    if same and before.digests is None:
        return None
    place = 0
    torn = set[int]()
    for number, head in zip(watched.order, heads, strict=True):
        if not np.array_equal(before.sample[place : place + head.size], head):
            torn.add(number)
        place += head.size
    for number, (spot, target) in enumerate(zip(watched.spots, targets, strict=True)):
        if (
            number in torn
            or versions[number] != before.versions[number]
            or (before.digests is not None and before.digests[number] != digest(target.data))
        ):
            return f"{spot.name} was changed while it was copied, not by its optimizer's step"
    return None


def _versions(tensors: Sequence[torch.Tensor]) -> list[int]:
    return [tensor._version for tensor in tensors]


def _joined(heads: Sequence[Bytes]) -> Bytes:
    return np.concatenate(heads) if heads else np.empty(0, np.uint8)


def _indexes(places: Sequence[tuple[int, int]], unit: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Of all units of `unit` bytes in these (offset, size)."""
    each = [np.arange(offset // unit, (offset + size) // unit, dtype=np.int64) for offset, size in places]
    return np.concatenate(each) if each else np.empty(0, np.int64)
