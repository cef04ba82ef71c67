"""Slots in private memory: reused, replaced when the state grows, refused where there is no memory."""

from __future__ import annotations

import numpy as np

from mementum.events import Note
from mementum.execute.memory_slots import MemorySlots
from trips import Told

SIZES = (5, 0, 9000)
MIB = 1 << 20
PLENTY = 1 << 40


def test_private_memory_is_reused() -> None:
    slots = MemorySlots(2, headroom=lambda: PLENTY)
    one, two = slots.acquire(SIZES), slots.acquire(SIZES)
    assert one is not None
    assert two is not None
    assert slots.acquire(SIZES) is None
    assert slots.why == "all slots are in use"
    assert [array.nbytes for array in one.arrays] == [5, 0, 9000]
    assert all(array.ctypes.data % 4096 == 0 for array in one.arrays)
    one.validate(b"", seq=1, attempt=1, id="a", step=1)
    address = one.arrays[0].ctypes.data
    one.discard()
    again = slots.acquire((4, 4))
    assert again is one
    assert (again.stamp, again.arrays[0].ctypes.data, again.arrays[1].nbytes) == (None, address, 4)
    again.release()
    larger = slots.acquire((MIB,))
    assert larger is not None
    assert larger.size == MIB + 4096
    array = larger.arrays[0]
    array[:] = 3
    slots.close()
    assert int(array.astype(np.int64).sum()) == 3 * MIB
    assert slots.acquire(SIZES) is None


def test_private_memory_that_is_not_there() -> None:
    told = Told()
    slots = MemorySlots(2, emit=told, headroom=lambda: 70 * MIB)
    assert slots.acquire((7 * MIB,)) is None
    assert "only 73400320 bytes" in (slots.why or "")
    slots = MemorySlots(2, emit=told, headroom=lambda: None)
    assert slots.acquire((1 << 60,)) is None
    assert "cannot be had: Cannot allocate memory" in (slots.why or "")
    assert len(told.of(Note)) == 2
