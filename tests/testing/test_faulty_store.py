"""A faulty store has each of its faults as it is said, and does nothing else."""

import random

import pytest

from mementum.clock import ManualClock
from mementum.errors import AccessRefused, Unreachable
from mementum.storage.local import LocalStore
from mementum.testing.choices import EveryChoice
from mementum.testing.faulty_store import IN_A_ROW_MAX, PASSING, STALL_S, FaultyStore
from mementum.testing.simdisk import SimDisk


def store_with(*faults, clock=None):
    """A store that has these faults in turn, then none; and the store in it."""
    inner = LocalStore(SimDisk(), "root")
    for key in ("a", "b", "f/c"):
        inner.put(key, [b"0123456789"])
    coming = list(faults)

    def choose(options):
        if options == (False, True):
            return True  # break off at once
        return coming.pop(0) if coming else None

    return FaultyStore(inner, choose, faults=(None, *faults), clock=clock), inner


def keys(store):
    return [stat.key for stat in store.list()]


CALLS = (
    lambda store: store.put("new", [b"1", b"2"]),
    lambda store: store.replace("a", [b"1", b"2"]),
    lambda store: store.delete("a"),
    lambda store: store.get("a"),
    lambda store: list(store.list()),
    lambda store: store.folders(),
    lambda store: store.sweep(),
)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("fault", "error"),
    [("refused", Unreachable), ("throttled", Unreachable), ("cut", Unreachable), ("denied", AccessRefused)],
)
def test_what_is_refused_is_not_done(call, fault, error):
    store, inner = store_with(fault)
    with pytest.raises(error):
        call(store)
    assert store.seen == {fault: 1}
    assert keys(inner) == ["a", "b", "f/c"]
    assert bytes(inner.get("a")) == b"0123456789"
    assert inner.sweep() == ()


def test_what_is_done_without_an_answer_is_done():
    store, inner = store_with("lost answer", "lost answer", "lost answer")
    for call in CALLS[:3]:
        with pytest.raises(Unreachable, match="no answer"):
            call(store)
    assert keys(inner) == ["b", "f/c", "new"]
    assert bytes(inner.get("new")) == b"12"


def test_a_get_that_is_cut_brings_fewer_bytes():
    store, _ = store_with("cut", "cut")
    assert bytes(store.get("a", 2, 6)) == b"234"
    assert bytes(store.get("a", 2, 1)) == b""
    assert bytes(store.get("a", 2, 6)) == b"234567"


def test_a_put_breaks_off_anywhere_and_leaves_nothing():
    choose, sent = EveryChoice(), []
    while True:
        inner = LocalStore(SimDisk(), "root")
        store = FaultyStore(inner, choose, faults=("cut",))
        taken = []
        with pytest.raises(Unreachable, match="was closed"):
            store.put("a", (taken.append(chunk) or chunk for chunk in (b"1", b"2")))
        sent.append(len(taken))
        assert keys(inner) == []
        if not choose.advance():
            break
    assert sent == [2, 2, 1]


def test_a_stall_takes_its_time():
    clock = ManualClock()
    store, inner = store_with("stall", clock=clock)
    store.put("new", [b"1"])
    assert clock.monotonic() == STALL_S
    assert "new" in keys(inner)


def test_a_throttled_place_refuses_the_next_call_too():
    store, _ = store_with("throttled")
    for _ in range(2):
        with pytest.raises(Unreachable, match="busy"):
            store.folders()
    assert store.folders() == ("f",)


def test_after_some_faults_in_a_row_one_call_passes(rng):
    store, _ = store_with(*["refused"] * 100)
    outcomes = []
    for _ in range(20):
        try:
            store.folders()
            outcomes.append(True)
        except Unreachable:
            outcomes.append(False)
    assert outcomes == ([False] * IN_A_ROW_MAX + [True]) * 4


def test_a_seed_means_the_same_faults():
    def outcomes() -> list[object]:
        store = FaultyStore(LocalStore(SimDisk(), "root"), random.Random(5).choice)
        found: list[object] = []
        for n in range(200):
            try:
                found.append(store.put(f"k{n}", [b"1", b"2"]))
            except Unreachable as error:
                found.append(error.message)
        return [*found, store.seen]

    assert outcomes() == outcomes()
    assert set(outcomes()[-1]) == set(PASSING)
    assert min(outcomes()[-1].values()) > 5
