"""The lease: by which an attempt says again and again that it lives, to hosts that cannot see its lock."""

from __future__ import annotations

import threading

from mementum.clock import Clock, timestamp
from mementum.errors import MementumError
from mementum.events import Emit, Failed, Note
from mementum.execute.attempts import lease_key, leases, look_key, newest_leases, numbers
from mementum.storage.store import Store

LEASE_S = 60.0  # long enough for a storage that hiccups, short enough for a person who waits after a node's death
RENEWALS = 3  # a lease: two may come late or fail before it lapses
STOP_S = 5.0  # for a renewal in flight; on a storage that hangs the lease lapses by itself
LOOK_S = 1.0  # between two looks at somebody's lease: a start notices an end soon, and the server is not flooded


class Lease:
    """Renewed by a thread of its own, which neither training nor a long save holds up.

    Each renewal is a new file; the older one is deleted when the newer is durable. No wall clock of one host is ever
    compared with that of another: only that there is a new file counts."""

    def __init__(self, store: Store, number: int, *, clock: Clock, emit: Emit, lease_s: float = LEASE_S) -> None:
        self._store, self._number, self._clock, self._emit = store, number, clock, emit
        self._period_s = lease_s / RENEWALS
        self._count = 0
        self._told = False
        self._above: int | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Put the first file. StoreError if it cannot be put: nobody may hold a task on a promise that is not kept."""
        self._put()

    def start(self) -> None:
        """Renew from now on, until `release`. A daemon thread: it ends with the process."""
        self._thread = threading.Thread(target=self._run, name="mementum-lease", daemon=True)
        self._thread.start()

    def renew(self) -> None:
        """Say once more that we live. A failure is told once and tried again at the next turn. Who was superseded has
        nothing left to hold and stops: a later attempt must not have to wait for it."""
        try:
            if self._is_superseded():
                self._stop.set()
                self._delete_until(self._count)
                return
            self._put()
            self._delete_until(self._count - 1)
        except MementumError as error:
            if not self._told:
                self._told = True
                lasts_s = self._period_s * RENEWALS
                self._emit(
                    Failed(
                        what="renewing the lease",
                        error=error.message,
                        kept=f"the task, if it works again within {lasts_s:.0f} s; it is tried again",
                    )
                )
        else:
            self._told = False

    def release(self) -> None:
        """End the renewals and take the lease away, so that nobody waits for it. Twice is once."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(STOP_S)
        try:
            self._delete_until(self._count)
        except MementumError as error:
            self._emit(Note(text=f"the lease could not be taken away ({error.message}): it lapses by itself"))

    def _run(self) -> None:
        while not self._stop.wait(self._period_s):
            self.renew()

    def _put(self) -> None:
        self._count += 1  # also after a failure, which may have left the name
        self._store.put(lease_key(self._number, self._count), [f"{timestamp(self._clock.now())}\n".encode()])

    def _delete_until(self, last: int) -> None:
        for number, count in tuple(leases(self._store)):
            if number == self._number and count <= last:
                self._store.delete(lease_key(number, count))

    def _is_superseded(self) -> bool:
        """Whether a later attempt was there at the last renewal too: one that gives way is gone within seconds."""
        before, newest = self._above, max(numbers(self._store), default=0)
        self._above = newest if newest > self._number else None
        return before is not None and self._above == before


def outlasts(store: Store, number: int, *, lease_s: float, clock: Clock) -> int | None:
    """Wait until the lease of an attempt lapses, by our own monotonic clock alone: nothing new for `lease_s`.

    The count of its last file (0 if it was taken away: the attempt has ended), or None if it lives: it is still
    renewed when we have waited for a whole lease. Takes at most two leases."""
    began_s = changed_s = clock.monotonic()
    seen = newest_leases(store).get(number)
    while seen is not None:
        quiet_s = clock.monotonic() - changed_s
        if quiet_s >= lease_s:
            _see_anew(store, number)
            now = newest_leases(store).get(number)
            if now == seen:
                return seen
            seen, changed_s = now, clock.monotonic()
            continue
        if changed_s - began_s >= lease_s:
            return None
        clock.sleep(min(LOOK_S, lease_s - quiet_s))
        now = newest_leases(store).get(number)
        if now != seen:
            seen, changed_s = now, clock.monotonic()
    return 0


def _see_anew(store: Store, number: int) -> None:
    """Make the folder's list fresh. NFS keeps a list for up to a minute unless the reader changes the folder itself."""
    key = look_key(number)
    try:
        store.put(key, [b""])
    finally:
        store.delete(key)
