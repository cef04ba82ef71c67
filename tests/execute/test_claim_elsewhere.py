"""Starts on several hosts: who is gone is taken over from, who lives is not, and of two at once one is fenced."""

from __future__ import annotations

import errno
import itertools
import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from mementum.clock import ManualClock
from mementum.errors import KeyMissing, StoreError, Superseded, TaskInUse
from mementum.events import Note
from mementum.execute.attempts import key_of, lease_key
from mementum.execute.claim import STAYS_S, Attempt, claim, let_go, require_newest
from mementum.execute.identity import Identity, Incarnation, identify, render
from mementum.execute.lease import LEASE_S
from mementum.records import Buffer
from mementum.storage.local import LocalStore
from mementum.storage.store import Hold, Stat
from mementum.testing.simdisk import SimDisk
from trips import Told

HERE = Identity(host="here", pid=11, boot="boot-1", started=1, lease_s=LEASE_S)
THERE = Identity(host="there", pid=22, boot="boot-2", started=2, lease_s=LEASE_S)


@pytest.fixture
def home() -> LocalStore:
    return LocalStore(SimDisk(), "root")


def start(home: LocalStore, *, me: Identity = HERE, clock: Any = None, told: Told | None = None, **how: Any) -> Attempt:
    emit = told if told is not None else Told()
    how = {"shared": True, **how}
    return claim(home, task="t", facts={}, clock=clock or ManualClock(), emit=emit, me=me, **how)


def left_by(home: LocalStore, who: Identity, number: int = 1, *, lease: int | None = None) -> None:
    """The files of an attempt, as its holder's host wrote them; nobody here has its lock."""
    home.put(key_of(number), [json.dumps({"format": 1, "task": "t", **render(who)}).encode()])
    if lease is not None:
        home.put(lease_key(number, lease), [b""])


def but(who: Identity, **fields: Any) -> Identity:
    names = ("host", "pid", "boot", "started", "lease_s", "incarnations")
    return Identity(**{**{name: getattr(who, name) for name in names}, **fields})


def keys(home: LocalStore) -> list[str]:
    return [stat.key for stat in home.list("attempts/")]


@pytest.mark.parametrize("shared", [True, False])
def test_a_lease_of_another_host_is_waited_for_and_then_cleared(home: LocalStore, shared: bool) -> None:
    left_by(home, THERE, lease=7)
    clock, told = ManualClock(), Told()
    attempt = start(home, clock=clock, told=told, shared=shared)
    assert (attempt.number, attempt.sure, clock.monotonic()) == (2, False, 60.0)
    assert keys(home) == [key_of(1), key_of(2), lease_key(2, 1)]
    waits, takes = (note.text for note in told.of(Note))
    assert "attempt 1 on there (process 22)" in waits
    assert "60 s, at most 120 s" in waits
    assert "has not renewed its lease: the task is taken over" in takes
    let_go(attempt)
    assert keys(home) == [key_of(1), key_of(2)]


def test_the_length_of_a_lease_is_what_its_holder_promised(home: LocalStore) -> None:
    left_by(home, but(THERE, lease_s=15.0), lease=1)
    clock = ManualClock()
    start(home, clock=clock)
    assert clock.monotonic() == 15.0


def test_a_claim_that_cannot_be_read_has_a_lease_all_the_same(home: LocalStore) -> None:
    home.put(key_of(1), [b"torn"])
    home.put(lease_key(1, 1), [b""])
    clock, told = ManualClock(), Told()
    assert not start(home, clock=clock, told=told).sure
    assert clock.monotonic() == LEASE_S
    assert "an unknown host" in told.of(Note)[0].text


@pytest.mark.parametrize(
    ("who", "lease", "shared", "sure"),
    [
        pytest.param(THERE, None, True, True, id="ended: it took its lease with it"),
        pytest.param(but(THERE, lease_s=None), None, False, True, id="a local disk of another machine, or container"),
        pytest.param(but(THERE, lease_s=None), None, True, False, id="a host that sees a local disk promises nothing"),
        pytest.param(but(THERE, host="here"), 3, True, True, id="this machine was rebooted"),
        pytest.param(but(THERE, boot="boot-1"), 3, True, True, id="killed under this kernel, in a container perhaps"),
        pytest.param(Identity(host="here", pid=3), 3, True, True, id="killed here, on a system without a boot id"),
    ],
)
def test_who_is_gone_is_not_waited_for(
    home: LocalStore, who: Identity, lease: int | None, shared: bool, sure: bool
) -> None:
    left_by(home, who, lease=lease)
    clock, told = ManualClock(), Told()
    attempt = start(home, clock=clock, told=told, shared=shared)
    assert (attempt.number, attempt.sure, clock.monotonic()) == (2, sure, 0.0)
    assert len(told.of(Note)) == (0 if sure else 1)
    assert lease_key(1, 3) not in keys(home)


def test_localhost_is_not_one_machine(home: LocalStore) -> None:
    left_by(home, but(THERE, host="localhost"), lease=1)
    clock = ManualClock()
    assert not start(home, me=but(HERE, host="localhost"), clock=clock).sure
    assert clock.monotonic() == LEASE_S


def test_asked_for_a_takeover_waits_for_nobody_elsewhere(home: LocalStore) -> None:
    left_by(home, THERE, lease=1)
    clock, told = ManualClock(), Told()
    attempt = start(home, clock=clock, told=told, takeover=True)
    assert (attempt.number, attempt.sure, clock.monotonic()) == (2, False, 0.0)
    (note,) = told.of(Note)
    assert "attempt 1 on there (process 22): so it was asked (takeover=True)" in note.text


def test_a_restart_by_the_scheduler_waits_for_nobody_elsewhere(home: LocalStore) -> None:
    before, now = (Incarnation(scheduler="slurm", id="c/7", count=(count, 0)) for count in (0, 1))
    left_by(home, but(THERE, incarnations=(before,)), lease=1)
    clock, told = ManualClock(), Told()
    attempt = start(home, me=but(HERE, incarnations=(now,)), clock=clock, told=told)
    assert (attempt.sure, clock.monotonic()) == (False, 0.0)
    assert "slurm has restarted c/7" in told.of(Note)[0].text


def test_nobody_is_taken_over_from_whose_lock_this_kernel_sees(home: LocalStore) -> None:
    held = start(home)
    with pytest.raises(TaskInUse) as caught:
        start(home, takeover=True)
    assert not caught.value.elsewhere
    assert keys(home) == [key_of(1), lease_key(1, 1)]
    let_go(held)
    assert start(home).number == 2


def test_between_hosts_the_lease_decides_and_not_a_lock_that_a_server_kept(home: LocalStore) -> None:
    held = start(home, me=THERE)
    clock = ManualClock()
    attempt = start(home, clock=clock)
    assert (attempt.number, attempt.sure, clock.monotonic()) == (2, False, 60.0)
    held.hold.release()


def test_a_lock_elsewhere_without_a_lease_is_a_holder(home: LocalStore) -> None:
    left_by(home, but(THERE, lease_s=None))
    lock = home.hold(key_of(1))
    assert lock is not None
    with pytest.raises(TaskInUse) as caught:
        start(home)
    assert (caught.value.host, caught.value.elsewhere) == ("there", True)
    assert "takeover=True" in str(caught.value)
    assert "kill" not in str(caught.value)
    assert keys(home) == [key_of(1)]
    assert start(home, takeover=True).number == 2
    lock.release()


class Renewing(ManualClock):
    """While somebody sleeps, the holder of attempt 1 renews its lease every 20 s."""

    def __init__(self, home: LocalStore, until_s: float = 1e9) -> None:
        super().__init__()
        self._home, self._next_s, self._until_s = home, 20.0, until_s

    def sleep(self, duration_s: float) -> None:
        super().sleep(duration_s)
        while self._next_s <= min(self.monotonic(), self._until_s):
            self._home.put(lease_key(1, int(self._next_s)), [b""])
            self._next_s += 20.0


def test_a_holder_elsewhere_that_renews_is_not_disturbed(home: LocalStore) -> None:
    left_by(home, THERE, lease=1)
    before = home.get(key_of(1))
    clock = Renewing(home)
    with pytest.raises(TaskInUse) as caught:
        start(home, clock=clock)
    assert (caught.value.host, caught.value.pid, caught.value.elsewhere) == ("there", 22, True)
    assert clock.monotonic() == 60.0
    assert key_of(2) not in keys(home)
    assert home.get(key_of(1)) == before


def test_a_holder_that_dies_while_we_wait_is_taken_over_from(home: LocalStore) -> None:
    left_by(home, THERE, lease=1)
    clock = Renewing(home, until_s=45)
    assert start(home, clock=clock).number == 2
    assert clock.monotonic() == 100.0


class Lockless(LocalStore):
    """A file system without locks, as Lustre is mounted at many sites."""

    def hold(self, key: str) -> Hold | None:
        if self.locate(key) is None and not list(self.list(key)):
            raise KeyMissing(key)
        raise StoreError(key, "no locks") from OSError(errno.ENOSYS, "Function not implemented")


def test_without_locks_the_lease_alone_holds_the_task() -> None:
    home = Lockless(SimDisk(), "root")
    me = identify({}, lease_s=LEASE_S)
    first = start(home, me=me)
    with pytest.raises(TaskInUse):  # under one kernel the process itself can be seen
        start(home, me=me)
    let_go(first)
    clock = ManualClock()
    let_go(start(home, me=me, clock=clock))  # its run has ended, though the process is still there
    assert clock.monotonic() == 0.0
    assert me.started is not None
    left_by(home, but(me, started=me.started - 1), 3, lease=1)  # its process is gone, or is in another container
    assert start(home, me=me, clock=clock).number == 4
    assert clock.monotonic() == 60.0


def test_without_locks_and_without_a_lease_nothing_is_claimed() -> None:
    with pytest.raises(StoreError, match="no locks"):
        start(Lockless(SimDisk(), "root"), me=but(HERE, lease_s=None), shared=False)


class Interrupted(LocalStore):
    """A home that lets something happen before its call number `at`, once."""

    def __init__(self, disk: Any, at: int, meanwhile: Callable[[], None]) -> None:
        super().__init__(disk, "root")
        self._left, self._meanwhile = at, meanwhile

    @property
    def reached(self) -> bool:
        return self._left < 0

    def _tick(self) -> None:
        self._left -= 1
        if self._left == -1:
            self._meanwhile()

    def put(self, key: str, chunks: Iterable[Buffer]) -> Stat:
        self._tick()
        return super().put(key, chunks)

    def list(self, prefix: str = "") -> Any:
        self._tick()
        return super().list(prefix)

    def hold(self, key: str) -> Hold | None:
        self._tick()
        return super().hold(key)


@pytest.mark.parametrize("before", [0, 1])
def test_between_any_two_steps_of_another_host_never_two_get_through_that_may_commit(before: int) -> None:
    """Every interleaving in which the second start runs as one piece inside of the first, which stands still for it."""
    outcomes: set[tuple[int, ...]] = set()
    for at in itertools.count():
        disk, through = SimDisk(), []
        for _ in range(before):
            let_go(start(LocalStore(disk, "root")))

        def meanwhile(disk: SimDisk = disk, through: list[int] = through) -> None:
            try:
                through.append(start(LocalStore(disk, "root"), me=THERE).number)
            except TaskInUse:
                through.append(0)

        home = Interrupted(disk, at, meanwhile)
        try:
            through.append(start(home).number)
        except TaskInUse:
            through.append(0)
        if not home.reached:
            assert at >= 8
            break
        winners = [number for number in through if number]
        assert winners, f"before step {at} both gave way"
        plain = LocalStore(disk, "root")
        for number in winners[:-1] if winners == sorted(winners) else winners[1:]:
            with pytest.raises(Superseded):
                require_newest(plain, number, task="t", clock=ManualClock())
        require_newest(plain, max(winners), task="t", clock=ManualClock())
        outcomes.add(tuple(through))
    assert len(outcomes) > 1


def test_a_later_attempt_that_gives_way_supersedes_nobody(home: LocalStore) -> None:
    left_by(home, HERE, 1)
    left_by(home, THERE, 2)

    class GivesWay(ManualClock):
        def sleep(self, duration_s: float) -> None:
            super().sleep(duration_s)
            home.delete(key_of(2))

    require_newest(home, 1, task="t", clock=GivesWay())
    left_by(home, THERE, 2)
    clock = ManualClock()
    with pytest.raises(Superseded, match="was superseded by attempt 2, process 22 on there") as caught:
        require_newest(home, 1, task="t", clock=clock)
    assert (caught.value.attempt, caught.value.by, clock.monotonic()) == (1, 2, STAYS_S)
    require_newest(home, 2, task="t", clock=clock)
    require_newest(home, 9, task="t", clock=clock)


def test_leases_that_cannot_be_cleared_are_told(home: LocalStore) -> None:
    class Sticky(LocalStore):
        def delete(self, key: str) -> None:
            if ".lease-" in key:
                raise StoreError(key, "no permission")
            super().delete(key)

    left_by(home, THERE, lease=1)
    told = Told()
    attempt = start(Sticky(home._disk, "root"), told=told)
    assert attempt.number == 2
    assert "could not be taken away: no permission" in told.of(Note)[-1].text
