"""Liveness: what can be known of an attempt's holder from here, by its lock, its claim and its lease."""

from __future__ import annotations

import json
from typing import Literal

from mementum.errors import KeyMissing, StoreError
from mementum.execute.attempts import key_of
from mementum.execute.identity import Identity, lives, one_kernel, parse, rebooted
from mementum.execute.lease import LEASE_S
from mementum.records import record
from mementum.storage.disk import NO_LOCKS
from mementum.storage.store import Hold, Home, Store


@record
class Alive:
    """It holds the task. `elsewhere`: on another host, as far as the lock tells; that of a host that died may stay."""

    who: Identity | None
    elsewhere: bool = False


@record
class Gone:
    """It does not hold the task. `doubt` says why it may live all the same; None if it certainly does not."""

    doubt: str | None = None


@record
class Leased:
    """On another host, with a lease: only time can tell."""

    who: Identity | None
    count: int
    lease_s: float


Standing = Alive | Gone | Leased


def standing(home: Home, number: int, *, me: Identity, lease: int | None, shared: bool) -> Standing:
    """What is known of attempt `number`, whose newest lease file is `lease`.

    `shared`: other hosts may reach the home, and locks may not. Under one kernel the lock decides; between hosts the
    lease does, and the lock says nothing: a server may keep that of a host that is gone."""
    lock = _lock(home, number)
    if lock == "no file":
        return Gone()
    if lease is None and not shared:  # one kernel, and its lock: the claim need not be read
        return Alive(who=who_is(home, number)) if lock == "held" else Gone()
    who = who_is(home, number)
    if who is not None and one_kernel(me, who):
        return _by_lock(lock, who, lease)
    if who is not None and rebooted(me, who):
        return Alive(who=who) if lock == "held" else Gone()
    if lease is not None:
        return Leased(who=who, count=lease, lease_s=_promised_s(who))
    if lock == "held":
        return Alive(who=who, elsewhere=True)
    if not shared or (who is not None and who.lease_s is not None):
        return Gone()  # whoever promises a lease and has none has ended, or was taken over from
    return Gone(doubt=f"attempt {number} ran on {_name(who)} and promises no lease")


def who_is(store: Store, number: int) -> Identity | None:
    """Whom the attempt's file names; None where it cannot be read."""
    try:
        return parse(json.loads(bytes(store.get(key_of(number)))))
    except (ValueError, RecursionError, KeyMissing):
        return None


def has_no_locks(error: StoreError) -> bool:
    """Whether the file system knows no locks, as Lustre without `flock` among its mount options."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in NO_LOCKS


class NoLock(Hold):
    """Stands for a lock where there are none: the lease alone holds the task."""

    def release(self) -> None: ...


def _by_lock(lock: Literal["held", "free", "none"], who: Identity, lease: int | None) -> Standing:
    if lock == "held":
        return Alive(who=who)
    if lock == "none" and (lease is not None or who.lease_s is None) and lives(who):  # a run may end before its process
        return Alive(who=who)
    if lock == "none" and lease is not None:  # a container of this kernel whose processes we cannot see
        return Leased(who=who, count=lease, lease_s=_promised_s(who))
    return Gone()


def _lock(home: Home, number: int) -> Literal["held", "free", "none", "no file"]:
    try:
        hold = home.hold(key_of(number))
    except KeyMissing:  # a start that gave way took its file with it
        return "no file"
    except StoreError as error:
        if has_no_locks(error):
            return "none"
        raise
    if hold is None:
        return "held"
    hold.release()
    return "free"


def _promised_s(who: Identity | None) -> float:
    return who.lease_s if who is not None and who.lease_s is not None else LEASE_S


def _name(who: Identity | None) -> str:
    return who.host if who is not None else "an unknown host"
