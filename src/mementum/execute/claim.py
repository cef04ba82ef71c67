"""The claim: which process start of a task this is, told by a create-only file that its holder keeps locked."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import NoReturn

from mementum.clock import Clock, timestamp
from mementum.errors import KeyTaken, StoreError, Superseded, TaskInUse
from mementum.events import Emit, Event, Note
from mementum.execute.attempts import clear_before, key_of, newest_leases, numbers
from mementum.execute.identity import Identity, identify, render, succeeds
from mementum.execute.lease import LEASE_S, Lease, outlasts
from mementum.execute.liveness import Alive, Gone, Leased, NoLock, Standing, has_no_locks, standing, who_is
from mementum.records import record
from mementum.storage.store import Hold, Home, Store

TRIES = 50  # another start that is looking at our file holds it for microseconds
PAUSE_S = 0.02
LOOKS = 3  # before our own file is put: enough to tell a holder from somebody who looks as well
STAYS_S = 2.0  # twice what TRIES take: a later attempt that is there for longer does not give way

CLEARS_S_MAX = 60.0  # that somebody is waited for who only clears the task: he deletes some thousand files in it
CLEARS_PAUSE_S = 0.25


@record
class Attempt:
    """One process start of a task, numbered from 1. Its number is greater than that of any earlier start.

    `sure`: whether the holders of all earlier ones are certainly gone. `lease` is None where the lock is enough."""

    number: int
    hold: Hold
    lease: Lease | None = None
    sure: bool = True


@record
class Start:
    """A start that wants the task."""

    home: Home
    task: str
    me: Identity
    clock: Clock
    emit: Emit
    shared: bool
    takeover: bool

    def standing(self, number: int, lease: int | None) -> Standing:
        return standing(self.home, number, me=self.me, lease=lease, shared=self.shared)


@record
class Before:
    """What a start has found out about the attempts before it: leases that lapsed, by attempt and count, and attempts
    that it takes over from, come what may."""

    lapsed: Mapping[int, int]
    taken: frozenset[int]
    sure: bool


def _unheard(event: Event) -> None:
    """Nobody listens."""


def claim(
    home: Home,
    *,
    task: str,
    facts: Mapping[str, object],
    clock: Clock,
    emit: Emit = _unheard,
    shared: bool = False,
    takeover: bool = False,
    clears: bool = False,
    above: int = 0,
    me: Identity | None = None,
) -> Attempt:
    """Take the next number. TaskInUse if a living process holds an earlier one; one that only clears the task is
    waited for. `clears`: we are such a one, and `withdraw` when we are through. `above`: numbers up to this one are
    taken elsewhere. No file says so here: a holder that lives would take it for a later attempt.

    `shared`: hosts that do not see our lock may reach the home, so that a lease is renewed, and that of a holder
    elsewhere is waited for; with `takeover`, and where the scheduler has restarted us, it is not.

    Of several starts at once at most one gets through: each puts its file, then locks it and puts its lease, then
    looks at the others. Whoever sees a higher number gives way, and whoever sees a lower one waits for its holder to
    have seen that. A lower one that stays was there first."""
    if me is None:
        me = identify(os.environ, lease_s=LEASE_S if shared else None, clears=clears)
    start = Start(home=home, task=task, me=me, clock=clock, emit=emit, shared=shared, takeover=takeover)
    waited_s = 0.0
    while True:
        try:
            return _claim(start, facts, above)
        except TaskInUse as in_use:
            if not in_use.clears or waited_s >= CLEARS_S_MAX:
                raise
            if not waited_s:
                emit(Note(text=f"{in_use.message}: waiting until it is through"))
        clock.sleep(CLEARS_PAUSE_S)
        waited_s += CLEARS_PAUSE_S


def withdraw(home: Home, attempt: Attempt) -> None:
    """End the hold of who only cleared the task. It never was an attempt: its file goes, and the next start has its
    number."""
    try:
        if attempt.lease is not None:
            attempt.lease.release()
        home.delete(key_of(attempt.number))
    finally:
        attempt.hold.release()


def _claim(start: Start, facts: Mapping[str, object], above: int) -> Attempt:
    home, clock, me = start.home, start.clock, start.me
    before = _look_at_earlier(start)
    number = max(above, *numbers(home), 0) + 1
    fields = {"format": 1, "task": start.task, "time": timestamp(clock.now()), **render(me), **facts}
    while True:
        try:
            home.put(key_of(number), [json.dumps({**fields, "attempt": number}, indent=1).encode()])
            break
        except KeyTaken:
            number += 1
    hold = _hold(home, key_of(number), clock, shared=start.shared)
    lease = None if me.lease_s is None else Lease(home, number, clock=clock, emit=start.emit, lease_s=me.lease_s)
    try:
        if lease is not None:
            lease.begin()
        others = numbers(home)
        if others[0] > number:
            _raise_in_use(start, others[0], who_is(home, others[0]))
        _look_again(start, number, before)
        _clear_before(start, number)
    except BaseException:
        try:
            if lease is not None:
                lease.release()
            home.delete(key_of(number))  # it never was an attempt, and no holder must ever find it above its own
        finally:
            hold.release()
        raise
    return Attempt(number=number, hold=hold, lease=lease, sure=before.sure)


def let_go(attempt: Attempt) -> None:
    """End the hold on the task, so that the next start need not wait. Twice is once."""
    try:
        if attempt.lease is not None:
            attempt.lease.release()
    finally:
        attempt.hold.release()


def require_newest(store: Store, attempt: int, *, task: str, clock: Clock) -> None:
    """Superseded if a later attempt has the task: the number is the fencing token. Look before every commit, and
    before anything is removed. A later one that gives way is gone within moments, and is waited for."""
    waited_s = 0.0
    while (newest := max(numbers(store), default=attempt)) > attempt:
        if waited_s >= STAYS_S:
            who = who_is(store, newest)
            host, pid = (who.host, who.pid) if who is not None else ("an unknown host", 0)
            raise Superseded(task, attempt=attempt, by=newest, host=host, pid=pid)
        clock.sleep(STAYS_S / 4)
        waited_s += STAYS_S / 4


def _look_at_earlier(start: Start) -> Before:
    """Nothing of ours is on the disk yet: a holder that lives must not find a later attempt than its own."""
    lapsed: dict[int, int] = {}
    taken: set[int] = set()
    sure = True
    leases = newest_leases(start.home)
    for number in numbers(start.home):
        found = _patiently(start, number, leases.get(number))
        match found:
            case Gone(doubt=None):
                continue
            case Gone(doubt=str(doubt)):
                start.emit(Note(text=f"{doubt}: it is taken to be gone"))
            case Alive(who=who) | Leased(who=who):
                why = _takes_over(start, found)
                if why is not None:
                    taken.add(number)
                    start.emit(Note(text=f"the task is taken over from attempt {number} on {_place(who)}: {why}"))
                elif isinstance(found, Leased):
                    lapsed[number] = _outlast(start, number, found)
                else:
                    _raise_in_use(start, number, who, elsewhere=found.elsewhere)
        sure = False
    return Before(lapsed=lapsed, taken=frozenset(taken), sure=sure)


def _patiently(start: Start, number: int, lease: int | None) -> Standing:
    """Its standing; a lock that somebody else holds for a moment, to look at it as well, is waited for."""
    for _ in range(LOOKS - 1):
        found = start.standing(number, lease)
        if not isinstance(found, Alive):
            return found
        start.clock.sleep(PAUSE_S)
    return start.standing(number, lease)


def _takes_over(start: Start, found: Alive | Leased) -> str | None:
    """Why we need not wait for somebody elsewhere. Nobody is taken over from whose lock this kernel sees."""
    if isinstance(found, Alive) and not found.elsewhere:
        return None
    if start.takeover:
        return "so it was asked (takeover=True)"
    return succeeds(start.me, found.who) if found.who is not None else None


def _outlast(start: Start, number: int, found: Leased) -> int:
    where = f"attempt {number} on {_place(found.who)}"
    long = f"{found.lease_s:.0f} s, at most {2 * found.lease_s:.0f} s"
    start.emit(Note(text=f"waiting for the lease of {where} to lapse: {long}; open_run(takeover=True) does not wait"))
    count = outlasts(start.home, number, lease_s=found.lease_s, clock=start.clock)
    if count is None:
        _raise_in_use(start, number, found.who, elsewhere=True)
    start.emit(Note(text=f"{where} has {'ended' if count == 0 else 'not renewed its lease'}: the task is taken over"))
    return count


def _look_again(start: Start, own: int, before: Before) -> None:
    """What was gone must still be gone now that our file is there, which its holder will see; who came in between
    gives way, or was there first."""
    pending = [number for number in numbers(start.home) if number < own and number not in before.taken]
    for tries in range(TRIES):
        leases = newest_leases(start.home)
        found = {number: start.standing(number, leases.get(number)) for number in pending}
        pending = [number for number in pending if not _is_settled(found[number], before.lapsed.get(number))]
        if not pending:
            return
        if tries < TRIES - 1:
            start.clock.sleep(PAUSE_S)
    last = found[pending[0]]
    who = last.who if not isinstance(last, Gone) else None
    elsewhere = isinstance(last, Leased) or (isinstance(last, Alive) and last.elsewhere)
    _raise_in_use(start, pending[0], who, elsewhere=elsewhere)


def _clear_before(start: Start, own: int) -> None:
    try:
        clear_before(start.home, own)
    except StoreError as error:  # a later start waits in vain, once more
        start.emit(Note(text=f"lapsed leases could not be taken away: {error.message}"))


def _is_settled(found: Standing, lapsed: int | None) -> bool:
    return isinstance(found, Gone) or (isinstance(found, Leased) and found.count == lapsed)


def _hold(home: Home, key: str, clock: Clock, *, shared: bool) -> Hold:
    for _ in range(TRIES):
        try:
            hold = home.hold(key)
        except StoreError as error:
            if shared and has_no_locks(error):
                return NoLock()
            raise
        if hold is not None:
            return hold
        clock.sleep(PAUSE_S)
    raise StoreError(key, f"{key} was just made and somebody else holds it", next_command="try again")


def _raise_in_use(start: Start, number: int, who: Identity | None, *, elsewhere: bool = False) -> NoReturn:
    host, pid = (who.host, who.pid) if who is not None else ("an unknown host", 0)
    clears = who is not None and who.clears
    raise TaskInUse(start.task, host=host, pid=pid, elsewhere=elsewhere, clears=clears)


def _place(who: Identity | None) -> str:
    return f"{who.host} (process {who.pid})" if who is not None else "an unknown host"
