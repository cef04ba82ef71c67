"""A local file that is read past the page cache, by several threads, into buffers that they use again and again."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import stat
from pathlib import Path
from typing import Self

ALIGNMENT = 4096  # bytes: what O_DIRECT asks of places, lengths and addresses is never more than a page
HUGE = 2 << 20  # bytes: a huge page
NO_DIRECT = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})


def aligned_buffer(size: int) -> memoryview:
    """Memory for `LocalFile.read` of ranges of up to `size` bytes, wherever they begin. OSError if there is none.

    It lies in huge pages where the kernel has some: a direct read into small ones is cut into pieces of a page, and
    came at 0.9 GB/s where one into huge pages came at 2.3."""
    length = _rounded(size) + ALIGNMENT
    buffer = mmap.mmap(-1, length + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        buffer.madvise(mmap.MADV_HUGEPAGE)
    view = memoryview(buffer)
    first = -address_of(view) % HUGE
    return view[first : first + length]


def address_of(view: memoryview) -> int:
    """Where writable memory lies."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


class LocalFile:
    """A regular file, open for reading. A file system that refuses direct reads is read through its cache."""

    def __init__(self, path: Path) -> None:
        self._cached = _open(path, 0)
        self._direct: int | None = None
        try:
            if not stat.S_ISREG(os.fstat(self._cached).st_mode):
                raise OSError(errno.ENXIO, "is not a regular file", str(path))
            self._direct = _open(path, getattr(os, "O_DIRECT", 0))
        except OSError as error:
            if error.errno not in NO_DIRECT:
                os.close(self._cached)
                raise
        self.is_direct = self._direct is not None  # until the first read is refused, which some do in place of opening

    def read_into(self, start: int, target: memoryview) -> bool:
        """Fill `target` from `start` on, directly; False if that cannot be done: `target` then holds anything. Place,
        address and length must be on page borders. OSError as the operating system says."""
        if not self.is_direct or self._direct is None:
            return False
        done = 0
        while done < len(target):
            try:
                count = os.preadv(self._direct, [target[done:]], start + done)
            except OSError as error:
                if error.errno not in NO_DIRECT:
                    raise
                self.is_direct = False
                return False
            done += count
            if not count or done % ALIGNMENT:
                return done == len(target)
        return True

    def read(self, start: int, size: int, buffer: memoryview) -> memoryview:
        """At most `size` bytes from `start`, shorter only at the file's end: a view of `buffer`, which must have been
        made for that size and be no other thread's. OSError as the operating system says."""
        before = start % ALIGNMENT
        view = buffer
        got = 0
        if self.is_direct and self._direct is not None:
            try:
                got = os.preadv(self._direct, [view[: _rounded(before + size)]], start - before)
            except OSError as error:
                if error.errno not in NO_DIRECT:
                    raise
                self.is_direct = False
        while got < before + size:  # also what a direct read has left, since it may go on at an odd place
            count = os.preadv(self._cached, [view[got : before + size]], start - before + got)
            if not count:
                break
            got += count
        return view[before : max(before, min(got, before + size))]

    def close(self) -> None:
        os.close(self._cached)
        if self._direct is not None:
            os.close(self._direct)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _rounded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _open(path: Path, flags: int) -> int:
    """O_NONBLOCK, as a pipe that slipped in would wait for its other end."""
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | flags)
