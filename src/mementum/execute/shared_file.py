"""A file in shared memory that belongs to one living process: checked, locked, and never mapped beyond its memory."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import stat
from typing import Any

import numpy as np

from mementum.storage.descriptor import Descriptor

MODE = 0o600  # a snapshot holds a person's model and data
FLAGS = (
    os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
)  # nonblocking: a pipe in the name's place must not wait
CHUNK = (
    64 << 20
)  # bytes reserved at once: a signal makes the kernel undo what one call has reserved, and Python repeat it
UNIT = 512  # of st_blocks, whatever the file system

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class SharedFile(Descriptor):
    """An open file, locked but for one that was only peeked at. The lock ends with the process, also where its forked
    children live on."""

    def __init__(self, descriptor: int, path: str) -> None:
        super().__init__(descriptor)
        self.path = path

    @property
    def size(self) -> int:
        return os.fstat(self.descriptor).st_size

    @property
    def linked(self) -> bool:
        """Whether it still has its name, so that the next start would find it."""
        return os.fstat(self.descriptor).st_nlink > 0

    def fault(self, size: int) -> str | None:
        """What was done to it from outside, so that `size` bytes of it cannot be used; None if nothing."""
        status = os.fstat(self.descriptor)
        if status.st_nlink == 0:
            return "was removed from outside"
        if status.st_size < size:
            return f"was cut off from outside, to {status.st_size} of {size} bytes"
        if status.st_blocks * UNIT < size:  # a touch of a hole asks for memory, and on a full file system it is death
            return f"has holes: {status.st_blocks * UNIT} of {size} bytes have memory"
        return None

    def reserve(self, size: int) -> None:
        """Make it at least `size` bytes long, with memory behind each. OSError if there is not so much: then it stays
        as it was, where a mere ftruncate would let a later touch kill the process."""
        held = self.size
        try:
            for at in range(held, size, CHUNK):
                os.posix_fallocate(self.descriptor, at, min(CHUNK, size - at))
        except OSError:
            os.ftruncate(self.descriptor, held)
            raise

    def map(self, size: int, *, writable: bool) -> mmap.mmap:
        """The first `size` bytes. Where it is not `writable`, what is written stays in the mapping."""
        assert size <= self.size, "a touch beyond the end would kill the process"
        # mmap keeps a duplicate of its descriptor, which would keep our lock too: in a forked child, and here for as
        # long as any array lives. So it gets an open file of its own.
        descriptor = os.open(self.path, FLAGS)
        try:
            if not os.path.samestat(os.fstat(descriptor), os.fstat(self.descriptor)):
                raise FileNotFoundError(errno.ENOENT, "another file has taken its name", self.path)
            mapping = mmap.mmap(descriptor, size, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_COPY)
        finally:
            os.close(descriptor)
        if hasattr(mmap, "MADV_HUGEPAGE"):  # where the system allows it here, copies and direct writes gain much
            with contextlib.suppress(OSError):
                mapping.madvise(mmap.MADV_HUGEPAGE)
        return mapping

    def read(self, at: int, size: int) -> bytes:
        """`size` bytes, or fewer at its end. Not through a mapping: what was cut off is an answer, not a SIGBUS."""
        return os.pread(self.descriptor, size, at)

    def write(self, at: int, data: bytes) -> None:
        """All of `data`, not through a mapping, for the same reason. OSError if there is no memory for it."""
        while data:
            written = os.pwrite(self.descriptor, data, at)
            data, at = data[written:], at + written

    def remove(self) -> None:
        """Take its name away, unless that has become another file's."""
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.lstat(self.path), os.fstat(self.descriptor)):
                os.unlink(self.path)


def create(path: str) -> SharedFile | None:
    """Make a new, empty file and lock it. None if the name is taken."""
    try:
        file = SharedFile(os.open(path, FLAGS | os.O_CREAT | os.O_EXCL, MODE), path)
    except FileExistsError:
        return None
    try:
        os.fchmod(file.descriptor, MODE)  # a strange umask takes bits away, and the next start would refuse the file
        if _lock(file) and file.linked:
            return file
        file.remove()  # somebody who looked for dead owners was quicker than our lock
    except BaseException:
        file.remove()
        file.close()
        raise
    file.close()
    return None


def take(path: str) -> SharedFile | None:
    """Open and lock a file that a dead process has left. None if its owner lives, or it is gone. PermissionError says
    why it cannot be a file of ours."""
    file = peek(path)
    if file is None:
        return None
    try:
        if _lock(file):
            return file
    except BaseException:
        file.close()
        raise
    file.close()
    return None


def peek(path: str) -> SharedFile | None:
    """Open a file without its lock, to read what its owner says of itself. None if it is gone; PermissionError says why
    it cannot be a file of ours."""
    try:
        why = what_is_wrong(os.lstat(path))
        if why is not None:
            raise PermissionError(errno.EPERM, why, path)
        file = SharedFile(os.open(path, FLAGS), path)
    except FileNotFoundError:
        return None
    try:
        why = what_is_wrong(os.fstat(file.descriptor))  # it may have been replaced after the first look
        if why is not None:
            raise PermissionError(errno.EPERM, why, path)
    except BaseException:
        file.close()
        raise
    return file


def what_is_wrong(status: os.stat_result) -> str | None:
    """Why a file under one of our names was not made by us, or None. Whoever can write to the folder can plant one."""
    if not stat.S_ISREG(status.st_mode):
        return "is not a regular file"
    if status.st_uid != os.geteuid():
        return f"belongs to user {status.st_uid}"
    if stat.S_IMODE(status.st_mode) != MODE:
        return f"has mode {stat.S_IMODE(status.st_mode):04o} instead of {MODE:04o}"
    if status.st_nlink > 1:
        return "has another name too"
    return None


def arrays_in(mapping: mmap.mmap, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[Bytes, ...]:
    """Views of a mapping. Through numpy, which keeps it from being unmapped under them; torch.frombuffer does not."""
    whole = np.frombuffer(mapping, np.uint8)
    return tuple(whole[at : at + size] for at, size in zip(offsets, sizes, strict=True))


def let_go(mapping: mmap.mmap) -> None:
    """Unmap, at once or when the last array that looks into it is gone."""
    with contextlib.suppress(BufferError):
        mapping.close()


def _lock(file: SharedFile) -> bool:
    try:
        fcntl.flock(file.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
