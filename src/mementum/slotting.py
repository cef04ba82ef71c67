"""Slotting: slots of the kind and number that there is room for, those that a dead process has left among them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mementum.events import Emit, Note
from mementum.execute.leftovers import Left
from mementum.execute.memory_slots import MemorySlots
from mementum.execute.room import SHM, Room, choose, look, within
from mementum.execute.slots import Slot, Slots

PAGE = 4096  # bytes: what the kernel gives at a touch
IN_PROCESS = 2  # slots where none shall outlive the process: one is written while the other is filled


class ChosenSlots:
    """Slots of the kind and number that there is room for, chosen when the first snapshot, or one that is adopted,
    tells how large it is. All together take `memory` bytes at most."""

    def __init__(self, key: str, *, wanted: int, emit: Emit, memory: int | None = None) -> None:
        self._key, self._wanted, self._emit, self._memory = key, wanted, emit, memory
        self._slots: Slots | MemorySlots | None = None
        self._count = 0
        self._chosen = False
        self._held: frozenset[str] = frozenset()  # ids of snapshots that are kept
        self._lock = threading.Lock()

    def adopt(self, lefts: Sequence[Left]) -> tuple[Left, ...]:
        """Take over snapshots of a dead process, newest first, before there is one of our own. They count as slots, so
        that newer snapshots take their places, the oldest first. Those that there is no place for are returned."""
        if not lefts:
            return ()
        with self._lock:
            assert not self._chosen, "what is adopted tells how large a slot is"
            self._chosen = True
            self._choose(max(left.size for left in lefts), held=sum(left.size for left in lefts))
            if not isinstance(self._slots, Slots):
                return tuple(lefts)
            places = self._count - 1  # one is for our own, which would else begin by destroying one of these
            over = [left for left in lefts[:places] if not left.hand_over(self._slots.adopt)]
            return (*over, *lefts[places:])

    def acquire(self, sizes: Sequence[int], *, safe_seq: int | None = None) -> Any:
        with self._lock:
            return self._acquire(sizes, safe_seq)

    def warm(self, sizes: Sequence[int]) -> None:
        """Make all slots now and touch their pages, so that no save has to wait for that. An `acquire` waits. Those
        that were adopted stay as they are."""
        held: list[Any] = []
        with self._lock:
            try:
                while (
                    len(held) < max(1, self._count - len(self._whole()))
                    and (slot := self._acquire(sizes, None)) is not None
                ):
                    held.append(slot)
                    for array in slot.arrays:
                        array[::PAGE] = 0
            finally:
                for slot in held:
                    slot.release()

    def holds(self, seq: int) -> bool:
        """Whether the newest snapshot that the next start would find in memory is the one with this number."""
        with self._lock:
            return isinstance(self._slots, Slots) and self._slots.newest_seq == seq

    @property
    def whole(self) -> frozenset[str]:
        """The ids of the snapshots that the next start would find in memory."""
        with self._lock:
            return self._whole()

    def hold(self, id: str) -> Slot | None:
        """The slot with the whole snapshot of this id, ours until it is released, and `close` leaves it; None if it is
        in memory no more, or in use."""
        with self._lock:
            slot = self._slots.hold(id) if isinstance(self._slots, Slots) else None
            self._held |= set() if slot is None else {id}
            return slot

    def let_go(self, id: str, slot: Slot) -> None:
        """What `hold` gave is needed no more: it lies durable elsewhere, or nothing more can be done for it."""
        with self._lock:  # another thread may be told to hold one at this moment
            self._held -= {id}
        slot.release()

    def close(self, *, safe_seq: int | None = None) -> None:
        """Give the memory back, but for a whole snapshot that no disk has taken: the next start or a drain finds it."""
        if isinstance(self._slots, Slots):
            keep = safe_seq is not None and self._slots.newest_seq > safe_seq
            if keep:
                text = "the newest snapshot is on no disk and stays in memory: `mementum drain ROOT` carries it there"
                self._emit(Note(text=text))
            self._slots.close(keep=keep, spare=self._held)
        elif self._slots is not None:
            self._slots.close()

    def _whole(self) -> frozenset[str]:
        return self._slots.whole if isinstance(self._slots, Slots) else frozenset()

    def _acquire(self, sizes: Sequence[int], safe_seq: int | None) -> Any:
        if not self._chosen:
            self._chosen = True
            self._choose(sum(sizes))
        return None if self._slots is None else self._slots.acquire(sizes, safe_seq=safe_seq)

    def _choose(self, size: int, *, held: int = 0) -> None:
        """`held`: bytes of slots in shared memory that will be ours."""
        room = within(_besides(look(shm=SHM), held), self._memory)
        if not self._wanted:
            room = replace(room, shm_usable=False)
        choice = choose(room, size, wanted=self._wanted or IN_PROCESS)
        self._count = choice.slots
        if choice.kind == "shm":
            self._slots = Slots(SHM, self._key, count=choice.slots, emit=self._emit)
        elif choice.kind == "memory":
            self._slots = MemorySlots(count=choice.slots, emit=self._emit)


def _besides(room: Room, held: int) -> Room:
    """The room that there would be without so many bytes in shared memory."""

    def more(free: int | None) -> int | None:
        return None if free is None else free + held

    used = None if room.used is None else max(0, room.used - held)
    return replace(room, host_available=more(room.host_available), used=used, shm_free=more(room.shm_free))
