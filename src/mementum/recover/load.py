"""Load: reads a checkpoint's tensors and context into memory, proving every byte on the way."""

from __future__ import annotations

import itertools
import math
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from mementum.errors import NotReadableHere
from mementum.format import blocks
from mementum.format.generations import key_of
from mementum.records import Buffer, Damage, Index, Manifest, StoredTensor, record
from mementum.recover.read import THREADS, read_files, side_by_side
from mementum.recover.verify import Proved, examine
from mementum.storage.reading import HUGE
from mementum.storage.store import Store

ALIGNMENT = 64  # bytes: what torch gives its own tensors, so that vector instructions find them as they like them
RAW = "raw"
WEIGHTS = ".safetensors"  # files whose tensors are copied into a model
ARENA = 64 << 20  # bytes: large enough for huge pages, small enough that one tensor kept holds little else

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@record
class Loaded:
    """A checkpoint in memory, proved: tensors by component and name, and the context."""

    manifest: Manifest
    context: Mapping[str, Any]
    tensors: Mapping[str, Mapping[str, torch.Tensor]]
    index: Index | None = None  # where they were read; None if they lay in memory


def load(store: Store, folder: str, manifest: Manifest) -> Loaded | tuple[Damage, ...]:
    """Read all of a checkpoint, or the damage that was found. Nothing live is touched.

    All tensors have memory of their own, to be given away: those of one component share a few large pieces of it.
    NotReadableHere if there is not enough memory."""
    proved = examine(store, folder, manifest)
    if not isinstance(proved, Proved):
        return proved
    files = proved.index.files
    keys = {file.name: key_of(folder, file) for file in files}
    fillings, damage = _fillings(proved.index, keys.__getitem__)
    wanted = [number for number, file in enumerate(files) if file.name in fillings]

    def take(number: int, begin: int, raw: Buffer) -> None:
        fillings[files[wanted[number]].name].take(begin, raw)

    whole = [all(block.codec == RAW for block in file.blocks) for file in files]

    def lend(number: int, begin: int, size: int) -> memoryview | None:
        # A file that says of itself what it unpacks to is given memory when its bytes are here, and not before.
        return fillings[files[wanted[number]].name].lend(begin, size) if whole[wanted[number]] else None

    reads = [files[number] for number in wanted]
    damage += read_files(store, folder, reads, take, lend=lend, bases=proved.index.bases)
    if damage:
        order = {key: number for number, key in enumerate(keys.values())}
        return tuple(sorted(damage, key=lambda one: order.get(one.key, len(order))))  # bases last
    tensors = _by_component(proved.index, fillings)
    return Loaded(manifest=manifest, context=proved.context, tensors=tensors, index=proved.index)


def load_raw(
    manifest: Manifest, index: Index, context: Mapping[str, Any], streams: Mapping[str, Buffer]
) -> Loaded | tuple[Damage, ...]:
    """The same of raw streams by file name that lie in memory and are whole: nothing is proved, and the index's files
    need no blocks. Tensors of weights are views of their stream; all others are copied, to be given away."""
    fillings, damage = _fillings(index, str)
    for name in fillings:
        if name.endswith(WEIGHTS) and not memoryview(streams.get(name, b"")).readonly:
            fillings[name].stands_in(streams[name])
    damage += [
        Damage(key=tensor.file, what=f"{tensor.name} does not lie inside it")
        for tensor in index.tensors
        if tensor.offset + tensor.size > memoryview(streams.get(tensor.file, b"")).nbytes
    ]
    if damage:
        return tuple(damage)
    pieces = [
        (name, begin)
        for name, filling in fillings.items()
        if not filling.full
        for begin in range(0, memoryview(streams[name]).nbytes, blocks.BLOCK)
    ]

    def copy(jobs: Iterator[tuple[str, int]]) -> None:
        for name, begin in jobs:
            fillings[name].take(begin, memoryview(streams[name])[begin : begin + blocks.BLOCK])

    try:
        side_by_side(iter(pieces), copy, threads=min(THREADS, len(pieces)))
    except MemoryError as cause:
        raise NotReadableHere(
            f"checkpoint {manifest.id} does not fit into memory twice", kept="the checkpoint; nothing was loaded"
        ) from cause
    return Loaded(manifest=manifest, context=context, tensors=_by_component(index, fillings))


def _fillings(index: Index, named: Callable[[str], str]) -> tuple[dict[str, Filling], list[Damage]]:
    """What the tensors of each file are filled by, and the tensors that cannot be: their files are not read."""
    held: dict[str, list[StoredTensor]] = {file.name: [] for file in index.files}
    for tensor in index.tensors:
        held[tensor.file].append(tensor)
    damage = [
        found
        for name, tensors in held.items()
        for tensor in tensors
        if (found := _impossible(tensor, named(name))) is not None
    ]
    wrong = {found.key for found in damage}
    return {
        name: Filling(tensors, aligned=not name.endswith(WEIGHTS))
        for name, tensors in held.items()
        if named(name) not in wrong
    }, damage


def _by_component(index: Index, fillings: Mapping[str, Filling]) -> dict[str, dict[str, torch.Tensor]]:
    tensors: dict[str, dict[str, torch.Tensor]] = {}
    for filling in fillings.values():
        for stored, tensor in filling.tensors():
            tensors.setdefault(stored.component, {})[stored.name] = tensor
    return tensors


class Filling:
    """Tensors with memory of their own, filled by several threads as the pieces of their file come in.

    Neighbours of one component share an arena: memory in one large piece is first touched at more than twice the speed
    of many small ones (6 GB/s against 2.4, measured), as the kernel gives it in huge pages. An arena is made when the
    first bytes of it are here, not on an index's word.

    Where the tensors lie in the file as they may lie in memory, whole blocks can be read right into the arena. Those of
    weights always may: they are copied once more, into the model."""

    def __init__(self, held: Iterable[StoredTensor], *, aligned: bool) -> None:
        self._alignment = ALIGNMENT if aligned else 1
        self.full = False  # whether nothing need be read
        self._held = sorted((stored for stored in held), key=lambda stored: stored.offset)
        self._starts = [stored.offset for stored in self._held]
        ends = (stored.offset + stored.size for stored in self._held)
        self._reach = list(itertools.accumulate(ends, max))  # the end of all up to one, should they overlap
        self._places: list[tuple[int, int]] = []  # the arena of each tensor, and where in it
        self._sizes: list[int] = []  # of the arenas
        self._begins: list[int] = []  # where in the stream the first tensor of each lies
        self._flat: list[bool] = []  # whether each is a piece of the stream as it is
        self._arenas: dict[int, Bytes] = {}
        self._making = threading.Lock()
        self._lay_out()

    def _lay_out(self) -> None:
        component = None
        for stored in self._held:
            if not self._sizes or stored.component != component or self._sizes[-1] + stored.size > ARENA:
                component = stored.component
                self._sizes.append(0)
                self._begins.append(stored.offset)
                self._flat.append(stored.offset % self._alignment == 0)
            place = self._sizes[-1]
            self._places.append((len(self._sizes) - 1, place))
            self._flat[-1] &= stored.offset - self._begins[-1] == place
            self._sizes[-1] += -(-stored.size // self._alignment) * self._alignment

    def stands_in(self, stream: Buffer) -> None:
        """Have the tensors be views of a stream that lies in memory."""
        data = np.frombuffer(stream, np.uint8)
        for number, (begin, size) in enumerate(zip(self._begins, self._sizes, strict=True)):
            if not self._flat[number] or begin + size > len(data):
                return  # it is copied, or found not to be whole
            self._arenas[number] = data[begin : begin + size]
        self.full = True

    def lend(self, begin: int, size: int) -> memoryview | None:
        """The memory in which `size` bytes of the stream, from `begin` on, have their place; None if it is not in one
        piece."""
        arena = bisect_right(self._begins, begin) - 1
        if arena < 0 or not self._flat[arena] or begin + size > self._begins[arena] + self._sizes[arena]:
            return None
        place = begin - self._begins[arena]
        return self._arena(arena)[place : place + size].data

    def take(self, begin: int, raw: Buffer) -> None:
        """Bytes of the raw stream, from `begin` on."""
        data = np.frombuffer(raw, np.uint8)
        end = begin + len(data)
        for number in range(bisect_right(self._reach, begin), bisect_left(self._starts, end)):
            stored = self._held[number]
            start, stop = max(begin, stored.offset), min(end, stored.offset + stored.size)
            if start < stop:
                array = self._array(number)
                array[start - stored.offset : stop - stored.offset] = data[start - begin : stop - begin]

    def _array(self, number: int) -> Bytes:
        arena, place = self._places[number]
        return self._arena(arena)[place : place + self._held[number].size]

    def _arena(self, number: int) -> Bytes:
        with self._making:
            if number not in self._arenas:
                self._arenas[number] = _congruent(self._sizes[number], self._begins[number])
        return self._arenas[number]

    def tensors(self) -> Iterator[tuple[StoredTensor, torch.Tensor]]:
        for number, stored in enumerate(self._held):
            yield stored, _tensor(stored, self._array(number)) if stored.size else _empty(stored)


def _congruent(size: int, begin: int) -> Bytes:
    """Memory that lies to huge pages as `begin` lies in its file, so that whole blocks are read right into it."""
    raw = np.empty(size + HUGE, np.uint8)
    first = (begin - raw.ctypes.data) % HUGE
    return raw[first : first + size]


def _impossible(stored: StoredTensor, key: str) -> Damage | None:
    dtype = vars(torch).get(stored.dtype)  # not getattr: torch imports modules when it is asked for their names
    if not isinstance(dtype, torch.dtype):
        return Damage(key=key, what=f"{stored.name} has dtype {stored.dtype!r}, which this torch does not know")
    if math.prod(stored.shape) * dtype.itemsize != stored.size:
        return Damage(key=key, what=f"{stored.name}: its shape and its size do not agree")
    try:
        torch.empty(stored.shape, dtype=dtype, device="meta")
    except (RuntimeError, ValueError, TypeError) as error:
        return Damage(key=key, what=f"{stored.name}: no tensor has the shape {stored.shape}: {str(error)[:100]}")
    return None


def _tensor(stored: StoredTensor, raw: Bytes) -> torch.Tensor:
    dtype: torch.dtype = vars(torch)[stored.dtype]
    return torch.from_numpy(raw).view(dtype).view(stored.shape)


def _empty(stored: StoredTensor) -> torch.Tensor:
    return torch.empty(stored.shape, dtype=vars(torch)[stored.dtype], device="cpu")
