"""A disk around a disk that fails once, at an operation of your choice."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Self

from mementum.records import Usage
from mementum.storage.disk import Disk, DiskLock, NewFile
from mementum.storage.store import Buffer


class FailingDisk:
    """A `Disk` whose operation number `fail_at` (from 0) raises `error` and does nothing.

    Operations are the calls that change something, and the write and fsync of open files. Reads and locks never fail.
    Go through all error paths by raising `fail_at` until a run ends with `failed` False:

        for fail_at in itertools.count():
            disk = FailingDisk(SimDisk(), fail_at)
            ...
            if not disk.failed:
                break

    With `then_heal=False` every later operation fails as well, until `heal` is called.
    """

    def __init__(self, inner: Disk, fail_at: int, error: OSError | None = None, *, then_heal: bool = True) -> None:
        self.failed = False
        self._inner = inner
        self._left = fail_at
        self._error = error if error is not None else OSError(errno.ENOSPC, "No space left on device")
        self._then_heal = then_heal
        self._healed = False

    def heal(self) -> None:
        """Fail no more."""
        self._healed = True

    def create(self, path: str) -> NewFile:
        self._step()
        return _FailingFile(self, self._inner.create(path))

    def append(self, path: str) -> NewFile:
        self._step()
        return _FailingFile(self, self._inner.append(path))

    def read(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        return self._inner.read(path, start, size)

    def size(self, path: str) -> int:
        return self._inner.size(path)

    def rename_new(self, old: str, new: str) -> None:
        self._step()
        self._inner.rename_new(old, new)

    def rename_over(self, old: str, new: str) -> None:
        self._step()
        self._inner.rename_over(old, new)

    def link(self, old: str, new: str) -> None:
        self._step()
        self._inner.link(old, new)

    def unlink(self, path: str) -> None:
        self._step()
        self._inner.unlink(path)

    def unlink_unused(self, path: str) -> bool:
        self._step()
        return self._inner.unlink_unused(path)

    def mkdir(self, folder: str) -> None:
        self._step()
        self._inner.mkdir(folder)

    def rmdir(self, folder: str) -> None:
        self._step()
        self._inner.rmdir(folder)

    def has_folder(self, folder: str) -> bool:
        return self._inner.has_folder(folder)

    def fsync_dir(self, folder: str) -> None:
        self._step()
        self._inner.fsync_dir(folder)

    def listdir(self, folder: str) -> list[str]:
        return self._inner.listdir(folder)

    def lock(self, path: str) -> DiskLock | None:
        return self._inner.lock(path)

    def locate(self, path: str) -> Path | None:
        return self._inner.locate(path)

    def usage(self, folder: str) -> Usage:
        return self._inner.usage(folder)

    def _step(self) -> None:
        due = self._left <= 0 and not (self.failed and self._then_heal)
        self._left -= 1
        if due and not self._healed:
            self.failed = True
            raise OSError(*self._error.args)  # a new one each time, of the class that its number asks for


class _FailingFile:
    """A NewFile whose writes and fsyncs count as operations of its disk."""

    def __init__(self, disk: FailingDisk, inner: NewFile) -> None:
        self._disk = disk
        self._inner = inner

    def write(self, chunk: Buffer) -> None:
        self._disk._step()
        self._inner.write(chunk)

    def fsync(self) -> None:
        self._disk._step()
        self._inner.fsync()

    def close(self) -> None:
        self._inner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
