"""Read: the blocks of a checkpoint's data files, read, proved and decoded by several threads at once."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from mementum.errors import MementumError, NotReadableHere
from mementum.format import blocks
from mementum.format.generations import key_of
from mementum.records import Block, Buffer, Damage, DataFile
from mementum.recover.verify import base_block, base_of, damage_of, tells_of_this_process
from mementum.storage.reading import ALIGNMENT, LocalFile, aligned_buffer
from mementum.storage.store import Store

# Measured on two busy cores, 1.2 GB, cold: 2 threads 1.5 to 2.1 s, 4 threads 1.0 to 1.4, 6 threads 1.3 to 1.8. While
# some wait for the disk, others digest and copy. Direct reads gave a steady 0.7 to 1.0 GB/s with 0.1 s of CPU, those
# through the page cache 0.3 to 1.5 with 0.14 to 1.7 s, and they push what training reads next out of that cache.
THREADS = max(2, min(8, os.cpu_count() or 2))  # one reads while the other proves; more than the cores only wait
LOCAL_MIN = 1 << 20  # bytes: below it a file is read at once, and opening it once more costs more than it saves
FILES_OPEN_MAX = 64  # a checkpoint has a few; the others are read through the store, and no limit of ours is reached

T = TypeVar("T")
Take = Callable[[int, int, Buffer], None]
Lend = Callable[[int, int, int], memoryview | None]
Job = tuple[int, int, int]  # number of the file, where a block begins in its raw stream, number of the block


def _lends_nothing(number: int, begin: int, size: int) -> None:
    """There is no memory of its own for any bytes."""


def read_files(
    store: Store,
    folder: str,
    files: Sequence[DataFile],
    take: Take,
    *,
    lend: Lend = _lends_nothing,
    bases: Sequence[DataFile] = (),
) -> list[Damage]:
    """Read every block of data files, and the first damage of each. `bases`: those of their index.

    What is proved and decoded is given to `take`: the number of the file, where the bytes begin in its raw stream, and
    the bytes, which are only lent. It is called by several threads and in no order.
    `lend` may give memory, on page borders, for a number of raw bytes of a file: they are read right into it, and
    `take` is not called for them.
    Raises what tells of this process, the first in the order of the files: NotReadableHere, StoreError."""
    with contextlib.ExitStack() as opened:
        reading = _Reading(store, folder, files, take, lend, bases)
        reading.near = _opened(store, folder, files, opened)
        count = sum(len(file.blocks) for file in files)
        size = sum(file.size for file in files)
        side_by_side(reading.jobs(), reading.work, threads=min(THREADS, count) if size > blocks.BLOCK else 1)
        return reading.found()


def side_by_side(jobs: Iterator[T], work: Callable[[Iterator[T]], None], *, threads: int) -> None:
    """Let several threads work on jobs, which they take one by one in their order. The first error is raised; what
    was begun ends before that."""
    shared = _Shared(jobs)
    if threads <= 1:
        work(shared)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="mementum-read") as pool:
        running = [pool.submit(work, shared) for _ in range(threads)]
        try:
            for one in running:
                one.result()
        finally:
            shared.stop()  # also where the waiting was interrupted


class _Shared(Generic[T]):
    """An iterator that several threads may ask."""

    def __init__(self, inner: Iterator[T]) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self._stopped = False

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        with self._lock:
            if self._stopped:
                raise StopIteration
            return next(self._inner)

    def stop(self) -> None:
        self._stopped = True


def _opened(store: Store, folder: str, files: Sequence[DataFile], opened: contextlib.ExitStack) -> dict[int, LocalFile]:
    near: dict[int, LocalFile] = {}
    for number, file in enumerate(files):
        if file.size < LOCAL_MIN or len(near) >= FILES_OPEN_MAX:
            continue
        with contextlib.suppress(MementumError, OSError):  # the store will say what is wrong with it
            path = store.locate(key_of(folder, file))
            if path is not None:
                near[number] = opened.enter_context(LocalFile(path))
    return near


class _Reading:
    """What the threads of one reading share."""

    def __init__(
        self,
        store: Store,
        folder: str,
        files: Sequence[DataFile],
        take: Take,
        lend: Lend,
        bases: Sequence[DataFile],
    ) -> None:
        self.near: dict[int, LocalFile] = {}
        self._store, self._folder, self._files = store, folder, files
        self._take, self._lend = take, lend
        self._bases = [base_of(file, bases) for file in files]
        self._lock = threading.Lock()
        self._raises = False  # one of the ends below is an error
        self._ends: dict[int, tuple[int, Damage | MementumError]] = {}  # by file: the first block that ended it

    def jobs(self) -> Iterator[Job]:
        """All blocks in file order. One that ends its file has only later ones after it, so that what is told does not
        depend on which thread was faster."""
        for number, file in enumerate(self._files):
            begin = 0
            for place, block in enumerate(file.blocks):
                if self._raises:
                    return
                if number in self._ends:
                    break
                yield number, begin, place
                begin += block.raw_size

    def work(self, jobs: Iterator[Job]) -> None:
        buffer: memoryview | None = None
        if self.near:
            with contextlib.suppress(OSError):  # no memory for it: the store may find some
                buffer = aligned_buffer(blocks.BLOCK)
        for number, begin, place in jobs:
            end = self._read(number, begin, place, buffer)
            if end is not None:
                block = self._files[number].blocks[place]
                with self._lock:
                    self._raises |= isinstance(end, MementumError)
                    first = self._ends.get(number)
                    if first is None or block.offset < first[0]:
                        self._ends[number] = (block.offset, end)

    def _read(self, number: int, begin: int, place: int, buffer: memoryview | None) -> Damage | MementumError | None:
        block, base = self._files[number].blocks[place], self._bases[number]
        key = key_of(self._folder, self._files[number])
        try:
            if self._is_in_place(number, begin, block):
                return None
            counted = None if base is None else base_block(self._store, key, block, base, place)
            if isinstance(counted, Damage):
                return counted
            stored = self._stored(number, block, buffer)
            if stored is None:
                stored = self._store.get(key, block.offset, block.size)
                wrong = blocks.damage(block, stored)
                if wrong is not None:
                    return Damage(key=key, what=wrong)
            self._take(number, begin, blocks.decode(block, stored, counted))
        except MementumError as error:
            return error if tells_of_this_process(error) else damage_of(key, error)
        except MemoryError as cause:
            refused = NotReadableHere(f"{key} does not fit into memory", kept="the checkpoint; nothing was loaded")
            refused.__cause__ = cause
            return refused
        return None

    def _is_in_place(self, number: int, begin: int, block: Block) -> bool:
        """Whether a block was read to where it belongs, and proved there. If not, it is read once more."""
        local = self.near.get(number)
        if local is None or block.codec != "raw" or block.offset % ALIGNMENT or block.size % ALIGNMENT:
            return False
        target = self._lend(number, begin, block.size)
        if target is None:
            return False
        try:
            return local.read_into(block.offset, target) and blocks.damage(block, target) is None
        except OSError:
            return False

    def _stored(self, number: int, block: Block, buffer: memoryview | None) -> memoryview | None:
        """The proved bytes of a block, read the fast way; None where that fails. Then the store has the last word, so
        that damage and errors are told in its words, and only what it too cannot read is damaged."""
        local = self.near.get(number)
        if local is None or buffer is None or block.size > blocks.BLOCK:
            return None
        try:
            stored = local.read(block.offset, block.size, buffer)
        except OSError:
            return None
        return stored if blocks.damage(block, stored) is None else None

    def found(self) -> list[Damage]:
        ends = [self._ends[number][1] for number in sorted(self._ends)]
        for end in ends:
            if isinstance(end, MementumError):
                raise end
        return [end for end in ends if isinstance(end, Damage)]
