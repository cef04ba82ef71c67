"""Leases: renewed while their holder lives, taken away at its end, and waited for by a clock that nobody can turn."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from mementum.clock import ManualClock
from mementum.errors import StoreError
from mementum.events import Failed, Note
from mementum.execute.attempts import clear_before, key_of, lease_key, look_key, newest_leases
from mementum.execute.lease import LEASE_S, Lease, outlasts
from mementum.records import Buffer
from mementum.storage.local import LocalStore
from mementum.storage.store import Stat
from mementum.testing.simdisk import SimDisk
from trips import Told


class Flaky(LocalStore):
    """A store that fails while it is told to, and tells of every lease that was put."""

    def __init__(self) -> None:
        super().__init__(SimDisk(), "root")
        self.fails = False
        self.on_put: Callable[[str], None] = lambda key: None

    def put(self, key: str, chunks: Iterable[Buffer]) -> Stat:
        if self.fails:
            raise StoreError(key, "the server is gone")
        stat = super().put(key, chunks)
        self.on_put(key)
        return stat

    def delete(self, key: str) -> None:
        if self.fails:
            raise StoreError(key, "the server is gone")
        super().delete(key)


@pytest.fixture
def store() -> Flaky:
    return Flaky()


def lease_of(store: LocalStore, number: int = 1, *, told: Told | None = None, lease_s: float = LEASE_S) -> Lease:
    return Lease(store, number, clock=ManualClock(), emit=told if told is not None else Told(), lease_s=lease_s)


def keys(store: LocalStore) -> list[str]:
    return [stat.key for stat in store.list("attempts/")]


def test_a_renewal_is_a_new_file_and_the_older_one_goes_when_it_is_there(store: Flaky) -> None:
    lease = lease_of(store)
    lease.begin()
    assert keys(store) == ["attempts/0001.lease-1"]
    seen: list[list[str]] = []
    store.on_put = lambda key: seen.append(keys(store))
    lease.renew()
    lease.renew()
    assert seen[-1] == ["attempts/0001.lease-2", "attempts/0001.lease-3"]
    assert keys(store) == ["attempts/0001.lease-3"]
    assert bytes(store.get("attempts/0001.lease-3")) == b"2023-11-14T22:13:20.000000Z\n"  # for a person who looks
    lease.release()
    assert keys(store) == []
    lease.release()


def test_only_its_own_files_are_touched(store: Flaky) -> None:
    for key in (lease_key(2, 1), lease_key(11, 1), "attempts/0001.lease-x", "attempts/0001.lease"):
        store.put(key, [b""])
    lease = lease_of(store, 1)
    lease.begin()
    lease.release()
    assert len(keys(store)) == 4


def test_a_lease_that_cannot_be_begun_is_an_error(store: Flaky) -> None:
    store.fails = True
    with pytest.raises(StoreError, match="the server is gone"):
        lease_of(store).begin()


def test_a_failed_renewal_is_told_once_and_tried_again(store: Flaky) -> None:
    told = Told()
    lease = lease_of(store, told=told)
    lease.begin()
    for _ in range(2):
        store.fails = True
        lease.renew()
        lease.renew()
        lease.renew()
        store.fails = False
        lease.renew()
    assert keys(store) == ["attempts/0001.lease-9"]
    assert [event.what for event in told.of(Failed)] == ["renewing the lease"] * 2
    store.fails = True
    lease.release()
    (note,) = told.of(Note)
    assert "it lapses by itself" in note.text


def test_the_thread_renews_until_the_release(store: Flaky) -> None:
    puts, enough = [], threading.Event()

    def count(key: str) -> None:
        puts.append(key)
        if len(puts) == 4:
            enough.set()

    store.on_put = count
    lease = lease_of(store, lease_s=0.003)
    lease.begin()
    lease.start()
    (thread,) = [each for each in threading.enumerate() if each.name == "mementum-lease"]
    assert thread.daemon
    assert enough.wait(60)
    lease.release()
    assert not thread.is_alive()
    assert keys(store) == []


def test_a_superseded_holder_stops_when_it_has_seen_it_twice(store: Flaky) -> None:
    lease = lease_of(store, 1)
    lease.begin()
    store.put(key_of(2), [b"{}"])
    lease.renew()
    assert newest_leases(store) == {1: 2}
    store.delete(key_of(2))  # it gave way
    lease.renew()
    store.put(key_of(3), [b"{}"])
    lease.renew()
    assert newest_leases(store) == {1: 4}
    lease.renew()
    assert newest_leases(store) == {}


def test_what_earlier_attempts_left_is_cleared_and_claims_stay(store: Flaky) -> None:
    mine = [key_of(1), key_of(3), lease_key(3, 4), lease_key(4, 1), "attempts/0001.lease"]
    for key in (*mine, lease_key(1, 7), lease_key(2, 1), look_key(2)):
        store.put(key, [b""])
    clear_before(store, 3)
    assert keys(store) == sorted(mine)


class Scripted(ManualClock):
    """A clock on which things happen while somebody sleeps. Its wall clock jumps back a day with every sleep."""

    def __init__(self, *events: tuple[float, Callable[[], object]]) -> None:
        super().__init__()
        self._events = list(events)

    def sleep(self, duration_s: float) -> None:
        super().sleep(duration_s)
        self._now_s -= 86_400
        while self._events and self._events[0][0] <= self.monotonic():
            self._events.pop(0)[1]()


def renewals(store: LocalStore, number: int, times_s: Iterable[float]) -> Iterator[tuple[float, Callable[[], object]]]:
    lease = lease_of(store, number)
    lease.begin()
    return ((time_s, lease.renew) for time_s in times_s)


@pytest.mark.parametrize(
    ("times_s", "count", "waited_s"),
    [
        ((), 1, 60),
        ((19.5,), 2, 80),  # the holder died after it: noticed at 20, and nothing for a lease from there
        ((20, 40, 55), 4, 115),
        ((59,), 2, 119),
        (range(20, 200, 20), None, 60),  # it lives, and that is said after one lease
    ],
)
def test_a_lease_lapses_when_nothing_new_came_for_its_length(
    store: Flaky, times_s: Iterable[float], count: int | None, waited_s: float
) -> None:
    clock = Scripted(*renewals(store, 1, times_s))
    assert outlasts(store, 1, lease_s=60.0, clock=clock) == count
    assert clock.monotonic() == pytest.approx(waited_s)


def test_a_holder_that_ends_is_not_waited_for(store: Flaky) -> None:
    lease = lease_of(store)
    lease.begin()
    clock = Scripted((5.0, lease.release))
    assert outlasts(store, 1, lease_s=60.0, clock=clock) == 0
    assert clock.monotonic() == pytest.approx(5.0)
    assert outlasts(store, 1, lease_s=60.0, clock=clock) == 0
    assert clock.monotonic() == pytest.approx(5.0)


class Stale(LocalStore):
    """A network file system's list: as it was, until the reader changes something in the folder."""

    held: tuple[Stat, ...] | None = None

    def list(self, prefix: str = "") -> Any:
        if self.held is None:
            self.held = tuple(super().list(prefix))
        return iter(self.held)

    def put(self, key: str, chunks: Iterable[Buffer]) -> Stat:
        self.held = None
        return super().put(key, chunks)


def test_a_stale_list_makes_no_living_holder_lapse(store: Flaky) -> None:
    clock = Scripted(*renewals(store, 1, range(20, 200, 20)))
    assert outlasts(Stale(store._disk, "root"), 1, lease_s=60.0, clock=clock) is None
    assert clock.monotonic() == pytest.approx(60.0)
    assert keys(store) == ["attempts/0001.lease-4"]


def test_other_attempts_leases_do_not_count(store: Flaky) -> None:
    lease_of(store, 1).begin()
    other = lease_of(store, 2)
    other.begin()
    clock = Scripted(*((time_s, other.renew) for time_s in range(10, 60, 10)))
    assert outlasts(store, 1, lease_s=60.0, clock=clock) == 1
    assert clock.monotonic() == pytest.approx(60.0)
