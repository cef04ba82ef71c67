"""Disks under a run that a test slows down or fills up, put in the place of the real one."""

from __future__ import annotations

import errno
import threading
from typing import Any

from mementum.storage.disk import PosixDisk

WAIT_S = 60.0  # of a thread that a test holds up; only a broken test waits so long


class GatedDisk(PosixDisk):
    """Writes to parts of checkpoints wait while `gate` is clear; `reached` is set by the first that waits."""

    def __init__(self) -> None:
        self.gate, self.reached = threading.Event(), threading.Event()

    def create(self, path: str) -> Any:
        return Gated(super().create(path), self) if "/step_" in path else super().create(path)


class Gated:
    """A file behind a gate."""

    def __init__(self, file: Any, disk: GatedDisk) -> None:
        self._file, self._disk = file, disk

    def write(self, chunk: Any) -> None:
        if not self._disk.gate.is_set():
            self._disk.reached.set()
            assert self._disk.gate.wait(WAIT_S), "nobody opened the gate"
        self._file.write(chunk)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class FullDisk(PosixDisk):
    """Has no space for anything whose path holds `full`, while that is not empty."""

    def __init__(self, full: str = "") -> None:
        self.full = full

    def create(self, path: str) -> Any:
        self._require_space(path)
        return super().create(path)

    def append(self, path: str) -> Any:
        self._require_space(path)
        return super().append(path)

    def _require_space(self, path: str) -> None:
        if self.full and self.full in path:
            raise OSError(errno.ENOSPC, "No space left on device", path)


class Quota(PosixDisk):
    """Has room for `room` bytes in all, and does not say so."""

    def __init__(self, room: int) -> None:
        self.room = room

    def create(self, path: str) -> Any:
        return Counted(super().create(path), self)

    def grow(self, room: int) -> None:
        self.room += room

    def unlink(self, path: str) -> None:
        size = self.size(path)
        super().unlink(path)
        self.room += size


class Counted:
    """A file on it."""

    def __init__(self, file: Any, disk: Quota) -> None:
        self._file, self._disk = file, disk

    def write(self, chunk: Any) -> None:
        size = memoryview(chunk).nbytes
        if size > self._disk.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._disk.room -= size
        self._file.write(chunk)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
