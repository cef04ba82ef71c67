"""Compress: streams a data file that landed raw into a new one, block by block, each proved before and after."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from mementum.errors import UnknownFormat
from mementum.format import blocks
from mementum.records import Block, Buffer, DataFile, StoredTensor
from mementum.storage.store import Store

# Called between blocks. It may wait, and says why the work is not to go on, or None.
Pause = Callable[[], str | None]


class GaveUp(Exception):
    """The new file is not wanted. It ends a put in the middle, and leaves nothing behind."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def is_raw(file: DataFile) -> bool:
    """Whether it landed raw. One in which only some blocks are was compressed, and those did not shrink."""
    return bool(file.size) and all(block.codec == "raw" for block in file.blocks)


def compress(
    file: DataFile, tensors: Sequence[StoredTensor], *, store: Store, folder: str, name: str, codec: str, pause: Pause
) -> DataFile:
    """Write `file`, which is raw, anew under `name`. `tensors` are those in it.

    GaveUp if it does not become smaller, or if `pause` has a reason; UnknownFormat if a block is not what was written.
    """
    widths = Widths(tensors)
    made: list[Block] = []

    def chunks() -> Iterator[Buffer]:
        offset = 0
        for old in file.blocks:
            reason = pause()
            if reason is not None:
                raise GaveUp(reason)
            stored = store.get(f"{folder}/{file.name}", old.offset, old.size)
            wrong = blocks.damage(old, stored)
            if wrong is not None:
                raise UnknownFormat(f"{folder}/{file.name}: {wrong}")
            whole = blocks.Stretch(offset=0, size=old.size, width=widths.of_next(old))
            for block, data in blocks.encode(stored, (whole,), codec):
                blocks.decode(block, data)  # raises where it does not give back what was encoded
                made.append(replace(block, offset=offset))
                offset += block.size
                yield data
        if offset > blocks.NOT_WORTH * file.size:  # told inside of the put, so that nothing is made durable for it
            raise GaveUp(f"{codec} makes {file.name} no smaller")

    stat = store.put(f"{folder}/{name}", chunks())
    return DataFile(name=name, size=stat.size, blocks=tuple(made))


class Widths:
    """The width in bytes of the numbers in a file's blocks, asked for one block after the other."""

    def __init__(self, tensors: Sequence[StoredTensor]) -> None:
        self._tensors = sorted((tensor for tensor in tensors if tensor.size), key=lambda tensor: tensor.offset)
        self._next = 0
        self._place = 0  # in the raw stream

    def of_next(self, block: Block) -> int:
        """That of the first tensor in the block: no block of ours holds numbers of two widths."""
        place, self._place = self._place, self._place + block.raw_size
        while self._next < len(self._tensors) and _end(self._tensors[self._next]) <= place:
            self._next += 1
        if self._next == len(self._tensors) or self._tensors[self._next].offset > place:
            return 1
        tensor = self._tensors[self._next]
        return tensor.size // max(1, _elements(tensor.shape))


def _end(tensor: StoredTensor) -> int:
    return tensor.offset + tensor.size


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count
