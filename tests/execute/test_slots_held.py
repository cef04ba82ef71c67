"""Slots that are held stay whole until they are released, and those of a dead process can be taken over."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mementum.execute.leftovers import leftovers
from mementum.execute.slots import Slot, Slots
from trips import Told

KEY = "0123abcd"
SIZES = (5, 0, 9000)
PLENTY = 1 << 40


@pytest.fixture
def shm() -> Iterator[Path]:
    """A folder in shared memory, which must be empty in the end."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="mementum-test-") as folder:
        yield Path(folder)


def slots_in(folder: Path, *, count: int = 3) -> Slots:
    return Slots(str(folder), KEY, count=count, emit=Told(), headroom=lambda: PLENTY)


def saved(slots: Slots, seq: int, sizes: tuple[int, ...] = SIZES) -> Slot:
    slot = slots.acquire(sizes)
    assert slot is not None, slots.why
    for array in slot.arrays:
        array[:] = seq
    slot.validate(b"head", seq=seq, attempt=1, id=f"c{seq}", step=seq)
    slot.release()
    return slot


def taken_over(folder: Path, slots: Slots) -> list[bool]:
    """Of each leftover, newest first: whether the slots have it."""
    return [left.hand_over(slots.adopt) or left.release() is not None for left in leftovers(str(folder), KEY)]


def test_what_is_held_is_overwritten_by_nobody(shm: Path) -> None:
    slots = slots_in(shm)
    for seq in (1, 2, 3):
        saved(slots, seq)
    assert slots.whole == {"c1", "c2", "c3"}
    held = slots.hold("c1")
    assert held is not None
    assert held.busy
    assert slots.hold("c1") is None  # once
    assert slots.hold("c9") is None
    saved(slots, 4)
    saved(slots, 5)
    assert slots.whole == {"c1", "c4", "c5"}
    assert [set(array.tolist()) for array in held.arrays] == [{1}, set(), {1}]
    held.release()
    saved(slots, 6)
    assert slots.whole == {"c4", "c5", "c6"}
    slots.close()
    assert slots.whole == frozenset()
    assert os.listdir(shm) == []


def test_what_is_being_filled_is_neither_whole_nor_to_be_held(shm: Path) -> None:
    slots = slots_in(shm)
    slot = slots.acquire(SIZES)
    assert slot is not None
    assert slots.whole == frozenset()
    slot.validate(b"head", seq=1, attempt=1, id="c1", step=1)
    assert slots.whole == {"c1"}
    assert slots.hold("c1") is None  # whoever fills it has it
    slot.release()
    os.unlink(slot.path)
    assert slots.whole == frozenset()  # the next start would not find it
    assert slots.hold("c1") is None
    slots.close()


def test_a_close_spares_what_is_held(shm: Path) -> None:
    slots = slots_in(shm)
    for seq in (1, 2, 3):
        saved(slots, seq)
    slots.close(spare={"c1"})
    assert [left.stamp.id for left in leftovers(str(shm), KEY) if left.stamp is not None] == ["c1"]


def test_slots_of_a_dead_process_are_taken_over_up_to_the_limit(shm: Path) -> None:
    dead = slots_in(shm)
    for seq in (1, 2, 3):
        saved(dead, seq)
    for slot in dead._slots:
        slot.close(keep=True)
    slots = slots_in(shm, count=2)
    assert taken_over(shm, slots) == [True, True, False]
    assert slots.whole == {"c2", "c3"}
    assert slots.newest_seq == 3
    assert [left.stamp.id for left in leftovers(str(shm), KEY) if left.stamp is not None] == [
        "c1"
    ]  # the others are ours
    held = slots.hold("c2")
    assert held is not None
    assert [set(array.tolist()) for array in held.arrays] == [{2}, set(), {2}]
    held.release()
    saved(slots, 4)  # takes the place of the oldest, and what is written to it is whole again
    assert slots.whole == {"c3", "c4"}
    slots.close(keep=True)
    (kept, *_) = leftovers(str(shm), KEY)
    assert kept.stamp is not None
    assert (kept.stamp.id, [set(array.tolist()) for array in kept.arrays]) == ("c4", [{4}, set(), {4}])


def test_one_that_was_taken_over_grows_with_the_state(shm: Path) -> None:
    dead = slots_in(shm)
    saved(dead, 1, (10,))
    dead._slots[0].close(keep=True)
    slots = slots_in(shm, count=2)
    assert taken_over(shm, slots) == [True]
    path = slots._slots[0].path
    assert saved(slots, 2, (7, 50_000)).path != path  # the newest whole one is not given up for it
    grown = saved(slots, 3, (7, 50_000))
    assert (grown.path, grown.size > 50_000, slots.whole) == (path, True, {"c2", "c3"})
    slots.close()


def test_a_torn_one_is_not_handed_over(shm: Path) -> None:
    dead = slots_in(shm)
    assert dead.acquire(SIZES) is not None
    dead._slots[0].close(keep=True)
    assert taken_over(shm, slots_in(shm)) == [False]
