"""Memory slots: memory for snapshots in the process itself, which ends with it."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Sequence

from mementum.events import Emit, Note
from mementum.execute.room import look, margin
from mementum.execute.shared_file import Bytes, arrays_in, let_go
from mementum.execute.slot_file import Layout, Stamp, lay
from mementum.execute.slots import Headroom


class MemorySlot:
    """Memory for one snapshot, as `Slot` without a file."""

    def __init__(self, mapping: mmap.mmap, capacity: int) -> None:
        self._mapping, self.size = mapping, capacity
        self.layout = lay(())
        self.arrays: tuple[Bytes, ...] = ()
        self.busy = False
        self.stamp: Stamp | None = None

    def fit(self, layout: Layout) -> None:
        if layout != self.layout or not self.arrays:
            self.arrays = arrays_in(self._mapping, layout.offsets, layout.sizes)
            self.layout = layout

    def validate(self, head: bytes, *, seq: int, attempt: int, id: str, step: int) -> None:
        """Only noted here: nothing would find it."""
        self.stamp = Stamp(seq=seq, attempt=attempt, id=id, step=step, layout=self.layout, head=head)

    def invalidate(self) -> None:
        self.stamp = None

    def release(self) -> None:
        self.busy = False

    def discard(self) -> None:
        self.invalidate()
        self.release()

    def close(self) -> None:
        self.arrays = ()
        let_go(self._mapping)


class MemorySlots:
    """Up to `count` slots in private memory, for where shared memory is too small."""

    def __init__(self, count: int, *, emit: Emit = lambda event: None, headroom: Headroom | None = None) -> None:
        self._count, self._emit = count, emit
        self._headroom: Headroom = headroom if headroom is not None else lambda: look().headroom
        self._slots: list[MemorySlot] = []
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._closed = self._told = False
        self.why: str | None = None

    def acquire(self, sizes: Sequence[int], *, safe_seq: int | None = None) -> MemorySlot | None:
        """A free slot; None if there is none now, see `why`. No snapshot is spared: none outlives the process."""
        if os.getpid() != self._pid:
            self.why = "the slots belong to the process that this one was forked from"
            return None
        with self._lock:
            if self._closed:
                self.why = "the slots are closed"
                return None
            layout = lay(sizes)
            self.why = "all slots are in use"
            slot = self._take(layout)
            if slot is not None:
                slot.fit(layout)
                slot.invalidate()
                slot.busy, self.why = True, None
            return slot

    def close(self) -> None:
        with self._lock:
            for slot in self._slots:
                slot.close()
            self._slots.clear()
            self._closed = True

    def _take(self, layout: Layout) -> MemorySlot | None:
        free = [slot for slot in self._slots if not slot.busy]
        fitting = next((slot for slot in free if slot.size >= layout.end), None)
        if fitting is not None:
            return fitting
        if free:  # too small since the state has grown: its memory goes first
            self._slots.remove(free[0])
            free[0].close()
        if len(self._slots) >= self._count:
            return None
        headroom = self._headroom()
        if headroom is not None and layout.end + margin(headroom) > headroom:
            self._fall_short(f"a slot needs {layout.end} bytes, and only {headroom} bytes of memory may be taken")
            return None
        try:
            # Private, where Python's own choice would be shared: that counts as shared memory, and a forked child would
            # write into it.
            mapping = mmap.mmap(-1, layout.end, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            self._fall_short(f"a slot of {layout.end} bytes cannot be had: {error.strerror}")
            return None
        self._slots.append(MemorySlot(mapping, layout.end))
        return self._slots[-1]

    def _fall_short(self, why: str) -> None:
        self.why = why
        if not self._told:
            self._told = True
            self._emit(Note(text=f"fewer slots in memory than planned: {why}"))
