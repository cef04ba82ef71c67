"""Limits of the disk: the best that plain direct I/O reaches, over block sizes and numbers of threads."""

from __future__ import annotations

import ctypes
import mmap
import os
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from _measure import MIB, Quiet, sync_file

from mementum.records import record

BLOCKS = (MIB, 4 * MIB, 16 * MIB)
THREADS = (1, 2, 3, 4)
SIZE_MIN = max(BLOCKS) * max(THREADS)  # a block for every thread
PAGE = mmap.PAGESIZE


@record
class Rate:
    """Bytes a second of one way to write or read, one sample a pass."""

    block: int
    threads: int
    write: tuple[float, ...]
    read: tuple[float, ...]


@record
class Limits:
    """The best median of all ways, in bytes a second, and all ways."""

    write: float
    read: float
    rates: tuple[Rate, ...]


class Grid:
    """The rates of every way, pass by pass: the passes stand between the measurements that they are compared with."""

    def __init__(self, folder: Path, size: int, quiet: Quiet) -> None:
        self._folder, self._size, self._quiet = folder, max(size, SIZE_MIN), quiet
        self._write: dict[tuple[int, int], list[float]] = {}
        self._read: dict[tuple[int, int], list[float]] = {}

    def measure(self, advance: Callable[[], None]) -> None:
        """One pass: new files for every way, each read once, past the page cache."""
        folder = self._folder / "limits"
        folder.mkdir(parents=True)
        with mmap.mmap(-1, max(BLOCKS) * max(THREADS), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
            memory.madvise(mmap.MADV_HUGEPAGE)  # into small pages a direct read is cut up, at half the speed
            memory.write(os.urandom(MIB) * (len(memory) // MIB))
            for block in BLOCKS:
                for threads in THREADS:
                    share = self._size // threads // block * block
                    paths = [folder / f"{block}-{threads}-{number}" for number in range(threads)]
                    buffers = [memoryview(memory)[number * block : (number + 1) * block] for number in range(threads)]
                    self._quiet.wait()
                    rate = share * threads / _in_threads(_write, paths, buffers, share, folder)
                    self._write.setdefault((block, threads), []).append(rate)
                    self._quiet.wait()
                    rate = share * threads / _in_threads(_read, paths, buffers, share, None)
                    self._read.setdefault((block, threads), []).append(rate)
                    for buffer in buffers:
                        buffer.release()
                    for path in paths:
                        path.unlink()
                    advance()
        folder.rmdir()

    def limits(self) -> Limits:
        rates = tuple(
            Rate(block=block, threads=threads, write=tuple(write), read=tuple(self._read[block, threads]))
            for (block, threads), write in self._write.items()
        )
        return Limits(
            write=max(statistics.median(rate.write) for rate in rates),
            read=max(statistics.median(rate.read) for rate in rates),
            rates=rates,
        )


def _in_threads(
    work: Callable[[Path, memoryview, int], None],
    paths: list[Path],
    buffers: list[memoryview],
    size: int,
    folder: Path | None,
) -> float:
    with ThreadPoolExecutor(len(paths)) as pool:
        list(pool.map(time.sleep, [0.0] * len(paths)))  # the threads are there before the clock runs
        began_s = time.perf_counter()
        list(pool.map(work, paths, buffers, [size] * len(paths)))
        if folder is not None:
            sync_file(folder)
        return time.perf_counter() - began_s


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_DIRECT, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _write(path: Path, buffer: memoryview, size: int) -> None:
    with _opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as descriptor:
        for offset in range(0, size, len(buffer)):
            if os.pwrite(descriptor, buffer, offset) != len(buffer):
                raise OSError(f"{path}: a short write; is the disk full?")
        os.fsync(descriptor)


def _read(path: Path, buffer: memoryview, size: int) -> None:
    with _opened(path, os.O_RDONLY) as descriptor:
        for offset in range(0, size, len(buffer)):
            if os.preadv(descriptor, [buffer], offset) != len(buffer):
                raise OSError(f"{path}: a short read")


def make_cold(folder: Path) -> float:
    """Take the files of a folder out of the page cache; the share of their pages that stayed there all the same."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size]
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # a dirty page cannot be dropped
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    stayed = _cached(files)
    if stayed > 0 and os.access("/proc/sys/vm/drop_caches", os.W_OK):
        Path("/proc/sys/vm/drop_caches").write_text("1\n")
        stayed = _cached(files)
    return stayed


def _cached(files: list[Path]) -> float:
    """The share of pages that are in the page cache, as mincore(2) tells."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    pages = cached = 0
    for path in files:
        size = path.stat().st_size
        descriptor = os.open(path, os.O_RDONLY)
        try:
            address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        finally:
            os.close(descriptor)
        told = ctypes.create_string_buffer(-(-size // PAGE))
        if libc.mincore(address, size, told) != 0:
            raise OSError(ctypes.get_errno(), f"mincore of {path}")
        libc.munmap(address, size)
        pages += len(told)
        cached += sum(byte & 1 for byte in told.raw)
    return cached / pages if pages else 0.0
