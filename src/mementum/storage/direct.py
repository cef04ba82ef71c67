"""Open files of the real disk, and the writes that go past its page cache where they can.

A direct write takes the bytes from where they lie: half the processor time of a buffered one or less, and the cache
stays with the data set. It asks for memory, place in the file and length on borders of `ALIGNMENT`; whatever lies
beside them is written as ever. Both kinds of write go through one descriptor, whose flag is turned over in between.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from typing import Self

from mementum.storage.descriptor import Descriptor
from mementum.storage.store import Buffer

ALIGNMENT = 4096  # bytes: a page, and the largest sector of disks that matter; what wants more refuses, which is met
DIRECT_MIN = 1 << 20  # bytes of one write: below it the way to the device costs more than the copy into the cache
NOT_DIRECT = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})  # it comes at the write, seldom at the flag
O_DIRECT = getattr(os, "O_DIRECT", 0)  # not every system has it


class OpenFile(Descriptor):
    """A NewFile on a descriptor."""

    _lost: str | None = None  # what has failed

    def write(self, chunk: Buffer) -> None:
        rest = flat(chunk)
        while rest:
            rest = rest[self._write(rest) :]

    def fsync(self) -> None:
        self._require_whole()
        try:
            os.fsync(self.descriptor)
        except OSError:
            self._lost = "fsync"
            raise

    def _write(self, rest: memoryview) -> int:
        self._require_whole()
        try:
            return os.write(self.descriptor, rest)
        except OSError:
            self._lost = "write"  # an fsync after it may well say that all is fine
            raise

    def _require_whole(self) -> None:
        if self._lost is not None:
            raise OSError(errno.EIO, f"an earlier {self._lost} of this file failed, so that its bytes are lost")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class DirectFile(OpenFile):
    """A new file, empty when given here. Where the file system refuses a direct write, `refused` is told, and the
    file goes on with the cache."""

    def __init__(self, descriptor: int, refused: Callable[[], None]) -> None:
        super().__init__(descriptor)
        self._refused = refused
        self._may_be_direct = bool(O_DIRECT)
        self._is_direct = False
        self._at = 0

    def write(self, chunk: Buffer) -> None:
        rest = flat(chunk)
        # Memory and file must meet their borders together. That holds for all of the chunk, or for none of it.
        meet = self._may_be_direct and len(rest) >= DIRECT_MIN and (address(rest) - self._at) % ALIGNMENT == 0
        while rest:
            head = -self._at % ALIGNMENT  # also after a direct write that ended early, off the border
            if not (meet and self._may_be_direct) or len(rest) < ALIGNMENT + head:
                written = self._write_cached(rest)
            elif head:
                written = self._write_cached(rest[:head])
            else:
                written = self._write_direct(rest[: len(rest) - len(rest) % ALIGNMENT])
            self._at += written
            rest = rest[written:]

    def _write_cached(self, piece: memoryview) -> int:
        self._turn(direct=False)
        return self._write(piece)

    def _write_direct(self, piece: memoryview) -> int:
        """How much was written; nothing where the file system does not do it."""
        self._require_whole()
        try:
            self._turn(direct=True)
            return os.write(self.descriptor, piece)
        except OSError as error:
            if error.errno not in NOT_DIRECT:
                self._lost = "write"
                raise
        self._may_be_direct = False
        self._refused()
        return 0

    def _turn(self, *, direct: bool) -> None:
        if direct != self._is_direct:
            flags = fcntl.fcntl(self.descriptor, fcntl.F_GETFL)
            fcntl.fcntl(self.descriptor, fcntl.F_SETFL, flags | O_DIRECT if direct else flags & ~O_DIRECT)
            self._is_direct = direct


def flat(chunk: Buffer) -> memoryview:
    """The chunk as single bytes."""
    view = memoryview(chunk)
    return view.cast("B") if view.nbytes else memoryview(b"")  # an empty one of several dimensions cannot be cast


def address(view: memoryview) -> int:
    """Where in memory the bytes begin."""
    import numpy as np  # ctypes tells the address of what may be written to only

    found: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    return found
