"""Slots that dead processes have left in shared memory: what the next start may come back from."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator

from mementum.clock import Clock
from mementum.execute.shared_file import Bytes, SharedFile, arrays_in, let_go, peek, take
from mementum.execute.slot_file import Stamp, prove
from mementum.execute.slots import prefix
from mementum.records import record

# For a lock whose owner is dead. A child of his that was forked and has not begun its own program yet still has it: on
# a free processor for a fraction of a millisecond, on one that ten processes want for much longer.
LOCK_WAIT_S = 2.0
LOOK_S = 0.02  # from one look at it to the next

IsDead = Callable[[int], bool]  # whether the process of an attempt certainly lives no more


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

    def hand_over(self, take: Callable[[SharedFile, Stamp], bool]) -> bool:
        """Offer its file, with the lock, to somebody who says whether he takes it. If so, nothing of it is ours."""
        if self.stamp is None or not take(self._file, self.stamp):
            return False
        self._unmap()
        return True

    def remove(self) -> None:
        """Give its memory back to the machine."""
        self._file.remove()
        self.release()

    def release(self) -> None:
        """Let it lie. Arrays that are still in use stay readable."""
        self._unmap()
        self._file.close()

    def _unmap(self) -> None:
        mapping, self._mapping, self.arrays = self._mapping, None, ()
        if mapping is not None:
            let_go(mapping)


@record
class Stale:
    """A slot that no living process has, whosever task it was."""

    path: str
    key: str
    size: int
    found: Stamp | str


def leftovers(
    folder: str, key: str, *, is_dead: IsDead = lambda attempt: False, clock: Clock | None = None
) -> tuple[Left, ...]:
    """A task's slots whose owners are dead: whole snapshots first, the newest of them first. Those of living processes
    and those that others have planted are passed over. With a clock, a moment is waited for what is locked though the
    attempt that it is of `is_dead`."""
    paths = _paths(folder, f"{prefix()}{key}-")
    taken = [_take(path) for path in paths]
    if clock is not None:
        until_s = clock.monotonic() + LOCK_WAIT_S
        taken = [file or _wait_for(path, is_dead, clock, until_s) for path, file in zip(paths, taken, strict=True)]
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


def _wait_for(path: str, is_dead: IsDead, clock: Clock, until_s: float) -> SharedFile | None:
    """The file, if it is a dead attempt's and its lock ends in time."""
    stamp = _stamp_of(path)
    if stamp is None or not is_dead(stamp.attempt):
        return None
    while (file := _take(path)) is None and clock.monotonic() < until_s:
        clock.sleep(LOOK_S)
    return file


def _stamp_of(path: str) -> Stamp | None:
    """What a locked slot says that it holds; it may be changing."""
    try:
        file = peek(path)
    except OSError:
        return None
    if file is None:
        return None
    try:
        found = prove(file.size, file.read)
    finally:
        file.close()
    return found if isinstance(found, Stamp) else None


def _key_of(path: str) -> str:
    return os.path.basename(path).removeprefix(prefix()).rpartition("-")[0]


def _order(left: Left) -> tuple[int, int, str]:
    assert left.stamp is not None
    return left.stamp.order
