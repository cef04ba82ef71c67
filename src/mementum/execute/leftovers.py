"""Slots that dead processes have left in shared memory: what the next start may come back from."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator

from mementum.execute.shared_file import Bytes, SharedFile, arrays_in, let_go, take
from mementum.execute.slot_file import Stamp, prove
from mementum.execute.slots import prefix
from mementum.records import record


class Left:
    """A slot without an owner, locked so that no other start takes it too. `arrays` can be read, not written."""

    def __init__(self, file: SharedFile) -> None:
        self._file = file
        self._mapping: mmap.mmap | None = None
        self.path = file.path
        self.size = file.size
        self.arrays: tuple[Bytes, ...] = ()
        self.found = self._look()  # its stamp, or why it holds no whole snapshot

    @property
    def stamp(self) -> Stamp | None:
        """Which snapshot it holds, if that is whole."""
        return self.found if isinstance(self.found, Stamp) else None

    @property
    def why(self) -> str | None:
        """Why it holds no whole snapshot."""
        return self.found if isinstance(self.found, str) else None

    def _look(self) -> Stamp | str:
        found = prove(self.size, self._file.read)
        if isinstance(found, str):
            return found
        fault = self._file.fault(found.layout.end)
        if fault is not None:
            return f"it {fault}"
        try:
            self._mapping = self._file.map(found.layout.end, writable=False)
        except OSError as error:
            return f"it cannot be mapped: {error.strerror}"
        self.arrays = arrays_in(self._mapping, found.layout.offsets, found.layout.sizes)
        return found

    def remove(self) -> None:
        """Give its memory back to the machine."""
        self._file.remove()
        self.release()

    def release(self) -> None:
        """Let it lie. Arrays that are still in use stay readable."""
        mapping, self._mapping, self.arrays = self._mapping, None, ()
        if mapping is not None:
            let_go(mapping)
        self._file.close()


@record
class Stale:
    """A slot that no living process has, whosever task it was."""

    path: str
    key: str
    size: int
    found: Stamp | str


def leftovers(folder: str, key: str) -> tuple[Left, ...]:
    """A task's slots whose owners are dead: whole snapshots first, the newest of them first. Those of living processes
    and those that others have planted are passed over."""
    taken = (_take(path) for path in _paths(folder, f"{prefix()}{key}-"))
    left = [Left(file) for file in taken if file is not None]
    whole = sorted((one for one in left if one.stamp is not None), key=_order, reverse=True)
    return (*whole, *(one for one in left if one.stamp is None))


def stale(folder: str) -> Iterator[Stale]:
    """All slots of this user that nobody has, to be shown: another task may still want to come back from its own."""
    for path in _paths(folder, prefix()):
        file = _take(path)
        if file is not None:
            try:
                seen = Stale(path=path, key=_key_of(path), size=file.size, found=prove(file.size, file.read))
            finally:
                file.close()  # before it is shown: meanwhile its task may start
            yield seen


def _paths(folder: str, beginning: str) -> list[str]:
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return [os.path.join(folder, name) for name in sorted(names) if name.startswith(beginning)]


def _take(path: str) -> SharedFile | None:
    try:
        return take(path)
    except OSError:  # planted, or not to be opened: nothing of ours
        return None


def _key_of(path: str) -> str:
    return os.path.basename(path).removeprefix(prefix()).rpartition("-")[0]


def _order(left: Left) -> tuple[int, int, str]:
    assert left.stamp is not None
    return left.stamp.order
