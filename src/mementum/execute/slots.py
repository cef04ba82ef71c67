"""Slots: host memory for snapshots, made once and reused.

In shared memory they outlive the process, so that a finished copy already is a checkpoint.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Collection, Iterator, Sequence

from mementum.events import Emit, Note
from mementum.execute.room import look, margin
from mementum.execute.shared_file import Bytes, SharedFile, arrays_in, create, let_go, what_is_wrong
from mementum.execute.slot_file import (
    FLAG_AT,
    INVALID,
    VALID,
    Layout,
    Stamp,
    lay,
    render_page,
    render_tail,
)

COUNT_MIN = 2  # with one, every copy would first destroy the newest snapshot
NUMBERS_MAX = 256  # names tried: slots of ours, leftovers and files planted by others, all together, are far fewer

Tell = Callable[[str, str], None]  # what it is about, told once; the text
Headroom = Callable[[], int | None]  # bytes of memory that may still be taken; None if that is not known


def name_of(key: str, number: int) -> str:
    """The file name of a slot. The user's id keeps users apart, the key tasks; the number is the first that is free."""
    return f"{prefix()}{key}-{number}"


def prefix() -> str:
    """How the names of all slots of this user begin."""
    return f"mementum-{os.geteuid()}-"


class Slot:
    """Memory for one snapshot. `arrays` holds one file's raw stream each; it belongs to whoever has acquired it."""

    def __init__(self, file: SharedFile, tell: Tell) -> None:
        self._file, self._tell = file, tell
        self._mapping: mmap.mmap | None = None
        self._mapped = 0
        self.layout = lay(())
        self.arrays: tuple[Bytes, ...] = ()
        self.busy = False
        self.stamp: Stamp | None = None  # of the whole snapshot in it

    @property
    def path(self) -> str:
        return self._file.path

    @property
    def size(self) -> int:
        """Bytes of shared memory that it holds."""
        return self._file.size

    def validate(self, head: bytes, *, seq: int, attempt: int, id: str, step: int) -> None:
        """Say that everything has been copied: from here on the snapshot outlives the process. If it cannot, that is
        told, and `stamp` stays None; the bytes can be used all the same."""
        self.invalidate()
        fault = self._file.fault(self.layout.end)
        if fault is not None:
            self._tell(self.path, f"the slot {self.path} {fault}: its snapshot ends with the process")
            return
        stamp = Stamp(seq=seq, attempt=attempt, id=id, step=step, layout=self.layout, head=head)
        tail = render_tail(stamp)
        try:
            self._file.write(self.layout.end, tail)
            self._file.write(0, render_page(stamp, tail))
            self._file.write(FLAG_AT, VALID)
        except OSError as error:
            self._tell(self.path, f"the slot {self.path} cannot be finished: {error.strerror}")
            return
        self.stamp = stamp

    def invalidate(self) -> None:
        """Take back that it holds a whole snapshot."""
        if self.stamp is not None:
            self.stamp = None
            self._file.write(FLAG_AT, INVALID)

    def release(self) -> None:
        """Give it back. A snapshot that was validated stays until its memory is needed."""
        self.busy = False

    def discard(self) -> None:
        """Give it back, and what it holds up."""
        self.invalidate()
        self.release()

    def fault(self) -> str | None:
        """What was done to its file from outside, or None."""
        return self._file.fault(self._mapped)

    @property
    def restorable(self) -> Stamp | None:
        """The snapshot that the next start would find."""
        return self.stamp if self._file.linked else None

    @property
    def unmapped(self) -> bool:
        """Whether it was made and has not had memory yet."""
        return self._mapping is None

    def lacks(self, layout: Layout) -> int:
        """Bytes that it is too short by."""
        return max(0, layout.end - self._file.size)

    def fit(self, layout: Layout) -> None:
        """Lay it out anew. OSError if its file cannot grow so far: then nothing has changed."""
        self._file.reserve(layout.end)
        if self._mapping is None or self._mapped < layout.end:
            mapping = self._file.map(layout.end, writable=True)
            self._drop_mapping()
            self._mapping, self._mapped, self.layout = mapping, layout.end, lay(())
        if layout != self.layout or not self.arrays:
            self.arrays = arrays_in(self._mapping, layout.offsets, layout.sizes)
            self.layout = layout

    def take_over(self, stamp: Stamp) -> None:
        """Use the file of a dead process, with the whole snapshot in it. OSError if it cannot be mapped."""
        self.fit(stamp.layout)
        self.stamp = stamp

    def close(self, *, keep: bool) -> None:
        """Give its memory back; with `keep` its file stays, free for whoever starts next."""
        self._drop_mapping()
        if not keep:
            self._file.remove()
        self._file.close()

    def _drop_mapping(self) -> None:
        mapping, self._mapping, self._mapped, self.arrays = self._mapping, None, 0, ()
        if mapping is not None:
            let_go(mapping)


class Slots:
    """Up to `count` slots of one task in one process, made when they are first needed.

    Several processes, tasks and objects of this class may share the folder. A forked child has none."""

    def __init__(self, folder: str, key: str, *, count: int, emit: Emit, headroom: Headroom | None = None) -> None:
        assert count >= COUNT_MIN, f"{count} slots"
        assert not set(key) - set("0123456789abcdef"), f"{key!r} is not hex"
        self._folder, self._key, self._count, self._emit = folder, key, count, emit
        self._headroom: Headroom = headroom if headroom is not None else lambda: look(shm=folder).headroom
        self._slots: list[Slot] = []
        self._told: set[str] = set()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._closed = False
        self.why: str | None = None  # why the last `acquire` gave none

    def acquire(self, sizes: Sequence[int], *, safe_seq: int | None = None) -> Slot | None:
        """A slot with an array for each of `sizes`, holding no valid snapshot; None if there is none now, see `why`.

        The newest valid snapshot is never given up, since a death during the copy would leave none, unless snapshots
        up to `safe_seq` lie durable elsewhere and nothing else is free."""
        if os.getpid() != self._pid:
            self.why = "the slots belong to the process that this one was forked from"
            return None
        with self._lock:
            if self._closed:
                self.why = "the slots are closed"
                return None
            self._let_damaged_go()
            layout = lay(sizes)
            self.why = "all slots are in use"
            for slot in self._candidates(layout, safe_seq):
                try:
                    slot.fit(layout)
                    slot.invalidate()
                except OSError as error:
                    self._fall_short(f"{slot.path} cannot have {layout.end} bytes: {error.strerror}")
                    if slot.unmapped:
                        self._drop(slot)
                    continue
                slot.busy, self.why = True, None
                return slot
            return None

    def adopt(self, file: SharedFile, stamp: Stamp) -> bool:
        """Take over the slot of a dead process, locked by us, with the whole snapshot in it: one of ours from now on.
        False, and nothing has changed, if there is no place for one more, or it cannot be mapped."""
        with self._lock:
            if self._closed or len(self._slots) >= self._count:
                return False
            slot = Slot(file, self._tell)
            try:
                slot.take_over(stamp)
            except OSError:
                return False
            self._slots.append(slot)
            return True

    def hold(self, id: str) -> Slot | None:
        """The slot with the whole snapshot of this id, which nobody overwrites until it is released; None if it is
        there no more, or in use already."""
        with self._lock:
            for slot in self._slots:
                if not slot.busy and slot.restorable is not None and slot.restorable.id == id:
                    slot.busy = True
                    return slot
            return None

    @property
    def whole(self) -> frozenset[str]:
        """The ids of the snapshots that the next start would find."""
        with self._lock:
            return frozenset(slot.stamp.id for slot in self._slots if slot.restorable is not None and slot.stamp)

    @property
    def newest_seq(self) -> int:
        """The number of the newest whole snapshot; 0 if there is none."""
        newest = self._newest()
        return 0 if newest is None or newest.stamp is None else newest.stamp.seq

    def close(self, *, keep: bool = False, spare: Collection[str] = ()) -> None:
        """Remove all files of these slots; with `keep`, all but the newest valid one, and none with a whole snapshot
        whose id is in `spare`. Arrays that are still in use stay readable. In a forked child it does nothing."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            newest = self._newest() if keep else None
            for slot in self._slots:
                held = slot.restorable
                slot.close(keep=slot is newest or (held is not None and held.id in spare))
            self._slots.clear()
            self._closed = True

    def _candidates(self, layout: Layout, safe_seq: int | None) -> Iterator[Slot]:
        """Free slots in the order in which they can best be spared; what would need more memory than there is, is left
        out."""
        newest = self._newest()
        free = [slot for slot in self._slots if not slot.busy]
        empty = [slot for slot in free if slot.restorable is None]
        held = [slot for slot in free if slot.restorable is not None and slot is not newest]
        yield from (slot for slot in empty if self._affords(slot.lacks(layout)))
        if len(self._slots) < self._count and self._affords(layout.end):
            made = self._make()
            if made is not None:
                yield made
        yield from (slot for slot in sorted(held, key=_age) if self._affords(slot.lacks(layout)))
        if newest is None or newest.busy or newest.stamp is None or safe_seq is None:
            return
        if newest.stamp.seq <= safe_seq and self._affords(newest.lacks(layout)):
            yield newest

    def _newest(self) -> Slot | None:
        return max((slot for slot in self._slots if slot.restorable is not None), key=_age, default=None)

    def _affords(self, size: int) -> bool:
        """Whether so much more memory may be taken. Asked first: a container that goes over its limit is not refused,
        it is killed."""
        if size == 0:
            return True
        headroom = self._headroom()
        if headroom is None or size + margin(headroom) <= headroom:
            return True
        self._fall_short(f"a slot needs {size} bytes more, and only {headroom} bytes of memory may be taken")
        return False

    def _make(self) -> Slot | None:
        for number in range(NUMBERS_MAX):
            path = os.path.join(self._folder, name_of(self._key, number))
            try:
                file = create(path)
            except OSError as error:
                self._fall_short(f"{path} cannot be made: {error.strerror}")
                return None
            if file is not None:
                self._slots.append(Slot(file, self._tell))
                return self._slots[-1]
            self._tell_if_planted(path)
        self._fall_short(f"all {NUMBERS_MAX} names of slots in {self._folder} are taken")
        return None

    def _tell_if_planted(self, path: str) -> None:
        try:
            why = what_is_wrong(os.lstat(path))
        except FileNotFoundError:
            return
        if why is not None:
            self._tell(path, f"{path} {why}: it is not used, and stays as it is")

    def _fall_short(self, why: str) -> None:
        self.why = why
        self._tell("short", f"fewer slots in shared memory than planned: {why}")

    def _let_damaged_go(self) -> None:
        for slot in [slot for slot in self._slots if not slot.busy]:
            fault = slot.fault()
            if fault is not None:
                self._drop(slot)
                self._tell(slot.path, f"the slot {slot.path} {fault}: another one takes its place")

    def _drop(self, slot: Slot) -> None:
        self._slots.remove(slot)
        slot.close(keep=False)

    def _tell(self, what: str, text: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._emit(Note(text=text))


def _age(slot: Slot) -> tuple[int, int, str]:
    assert slot.stamp is not None, "only whole snapshots have an age"
    return slot.stamp.order
