"""Slots that are held and let go of on two threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from disks import WAIT_S
from mementum import ram
from mementum.execute.leftovers import leftovers
from mementum.execute.slots import Slot
from mementum.slotting import ChosenSlots


@pytest.fixture
def slots(tmp_path: Path) -> Iterator[ChosenSlots]:
    key = ram.key_of(tmp_path, "t")
    made = ChosenSlots(key, wanted=3, emit=lambda event: None)
    yield made
    made.close()
    for left in leftovers(ram.FOLDER, key):
        left.remove()


def kept(slots: ChosenSlots, id: str, seq: int) -> Slot:
    slot = slots.acquire([100])
    slot.validate(b"head", seq=seq, attempt=1, id=id, step=seq)
    slot.release()
    held = slots.hold(id)
    assert held is not None
    return held


class Slow(frozenset[str]):
    """What is held; whoever computes what is left of it waits until somebody else has had the time to change it."""

    def __new__(cls, held: frozenset[str], *events: threading.Event) -> Any:
        return super().__new__(cls, held)

    def __init__(self, held: frozenset[str], reached: threading.Event, go_on: threading.Event) -> None:
        self._reached, self._go_on = reached, go_on

    def __sub__(self, other: Any) -> frozenset[str]:
        self._reached.set()
        assert self._go_on.wait(WAIT_S)
        return super().__sub__(other)


def test_what_is_held_while_another_is_let_go_of_stays_held(slots: ChosenSlots) -> None:
    first, second = kept(slots, "a", 1), slots.acquire([100])
    second.validate(b"head", seq=2, attempt=1, id="b", step=2)
    second.release()
    reached, go_on = threading.Event(), threading.Event()
    slots._held = Slow(slots._held, reached, go_on)
    letting_go = threading.Thread(target=slots.let_go, args=("a", first))
    letting_go.start()
    assert reached.wait(WAIT_S)
    assert slots._lock.locked()  # so that whoever wants to hold one now waits
    go_on.set()
    letting_go.join()
    assert slots.hold("b") is not None
    assert slots._held == {"b"}
