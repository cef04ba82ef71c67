"""Tending: checkpoints of a run are read back one after the other in the background, and mended where they can be."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mementum.clock import Clock, timestamp
from mementum.config.tiers import Scrub
from mementum.errors import MementumError, Superseded
from mementum.events import Emit, Failed
from mementum.execute import priority
from mementum.execute.compress import GaveUp
from mementum.mending import ROOT, Mending, Tell, in_words
from mementum.opening import Opened
from mementum.places import REMOTE, Site
from mementum.records import Entry, record
from mementum.scrubbing import Share, Sound, Unproved, Unsound, due, scrub
from mementum.storage.store import Store
from mementum.storage.tiers import kind_of

FIRST_S = 60.0  # a start has enough to do, and a run that ends before has nothing old enough to have rotted
LOOK_S = 60.0  # between two looks whether something is due
STOP_WAIT_S = 5.0  # for a block on its way; a request that takes longer dies with the process, and is no harm
STOPPED = "the run ends"


@record
class _Due:
    """A checkpoint, and the tier where it is to be read; None: the root."""

    entry: Entry
    site: Site | None

    @property
    def values(self) -> Mapping[str, Any]:
        """Of a fact about this copy."""
        return {} if self.site is None else {"tier": self.site.name}

    @property
    def where(self) -> str:
        return ROOT if self.site is None else self.site.name


class Tending:
    """One thread. Files on disks are read byte by byte; of objects in buckets and of a Redis, which cost by request and
    byte, sizes, indexes and contexts are looked at, unless the tier wants more."""

    def __init__(
        self,
        opened: Opened,
        wishes: Scrub,
        mending: Mending,
        *,
        tell: Tell,
        over: Callable[[], bool],
        clock: Clock,
        emit: Emit,
    ) -> None:
        """`over`: whether another attempt has the task."""
        self._opened, self._wishes, self._mending, self._tell = opened, wishes, mending, tell
        self._over, self._clock, self._emit = over, clock, emit
        self._stopped = threading.Event()
        self._share = Share(wishes.share, clock=clock, wait=self._wait)
        self._looked: dict[str, dict[str, float]] = {}  # when, by place and id: of what has no fact of it
        self._told: set[str] = set()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, in the background."""
        self._thread = threading.Thread(target=self._run, name="mementum-scrub", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End at the next block. Twice is once."""
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(STOP_WAIT_S)

    def _run(self) -> None:
        priority.idle()
        wait_s = FIRST_S
        while self._wait(wait_s) is None:
            try:
                wait_s = 0.0 if self.once() else LOOK_S
            except (GaveUp, Superseded):
                return
            except MementumError as error:
                self._fails(error.message)
                wait_s = LOOK_S
            except (Exception, SystemExit) as error:  # the thread's end: told; the run goes on
                self._fails(repr(error))
                return

    def once(self) -> bool:
        """Read one checkpoint that is due; whether there was one. GaveUp when the run ends."""
        self._share.begin()
        found = self._next()
        self._share.rest()  # many checkpoints take a while to be looked through
        if found is None:
            return False
        result = scrub(found.entry, store=self._store(found), deep=_is_deep(found.site), share=self._share)
        id, step = found.entry.manifest.id, found.entry.manifest.step
        self._looked.setdefault(found.where, {})[id] = self._clock.monotonic()
        if isinstance(result, Sound) and _is_deep(found.site):
            self._tell("verified", id, step, found.values)
        elif isinstance(result, Unsound) and self._is_listed(found):
            what = in_words(result.damage)
            self._tell("damaged", id, step, {**found.values, "what": what})
            kept = "what lies there, for a repair; all other copies and checkpoints"
            self._emit(Failed(what=f"reading back {id} of step {step} in {found.where}", error=what, kept=kept))
            self._mending.mend(found.entry, found.site, self._pause)
        elif isinstance(result, Unproved) and found.site is not None and found.site.silent:
            self._fails(result.reason)
        return True

    def _next(self) -> _Due | None:
        """The newest of each place first, then the one whose proof is the oldest."""
        if self._over():
            raise GaveUp("another attempt has the task")
        now_s = self._clock.monotonic()
        before = timestamp(self._clock.now() - self._wishes.every)
        found: list[tuple[bool, str, int, _Due]] = []
        for place, (site, entries) in enumerate(self._lists()):
            where, ids = ROOT if site is None else site.name, {entry.manifest.id for entry in entries}
            looked = {id: at_s for id, at_s in self._looked.get(where, {}).items() if id in ids}
            self._looked[where] = looked
            entry = due(entries, before=before, looked=looked, since_s=now_s - self._wishes.every)
            if entry is not None:
                newest = all(other.order <= entry.order for other in entries)
                found.append((not newest, entry.verified or "", place, _Due(entry=entry, site=site)))
        return min(found, key=lambda one: one[:3])[3] if found else None

    def _lists(self) -> list[tuple[Site | None, Sequence[Entry]]]:
        opened = self._opened
        lists: list[tuple[Site | None, Sequence[Entry]]] = [(None, opened.catalog.entries(opened.home))]
        for site in opened.places.sites:
            if site.joined and not site.silent and site.lost is None:
                lists.append((site, site.entries(opened.store)))
        return lists

    def _is_listed(self, found: _Due) -> bool:
        """Whether it is still to be there: a removal takes it out of the catalog first."""
        entries = next((entries for site, entries in self._lists() if site is found.site), ())
        return any(entry.manifest.id == found.entry.manifest.id for entry in entries)

    def _store(self, found: _Due) -> Store:
        return self._opened.store if found.site is None else found.site.store

    def _wait(self, duration_s: float) -> str | None:
        return STOPPED if self._stopped.wait(duration_s) else None

    def _pause(self) -> str | None:
        return STOPPED if self._stopped.is_set() else None

    def _fails(self, why: str) -> None:
        """Told once."""
        if why not in self._told and not self._stopped.is_set():
            self._told.add(why)
            self._emit(Failed(what="reading checkpoints back", error=why, kept="all checkpoints; the training goes on"))


def _is_deep(site: Site | None) -> bool:
    if site is None:
        return True
    wish = site.wishes.scrub
    return kind_of(site.wishes.url) not in REMOTE if wish is None else wish == "bytes"
