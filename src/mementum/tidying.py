"""Tidying: what need not stay is taken away after a save, and the catalog told what it must know for that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import TypeVar

from mementum.catalog import facts, noted
from mementum.catalog.catalog import Catalog
from mementum.catalog.lately import Lately
from mementum.catalog.rebuild import holding, learn, refresh
from mementum.catalog.sql import open_sqlite
from mementum.clock import Clock, unhurried
from mementum.decide.ageing import Aged, aged
from mementum.decide.filling import freed_by, give, with_stayed
from mementum.decide.retain import Retention, retain
from mementum.errors import MementumError, StoreError, Superseded
from mementum.events import Emit, Event, Failed
from mementum.execute.compress import GaveUp
from mementum.execute.holdings import holdings
from mementum.format.generations import manifest_name
from mementum.journal import Journal
from mementum.pruning import must_stay, prune, sweep
from mementum.records import Entry, Verdict
from mementum.rewriting import Unsettled
from mementum.storage.store import Home
from mementum.watermarks import Gave, Level
from mementum.withering import NOTHING, wither

T = TypeVar("T")

# After a takeover from an attempt that may live, its leftovers stay for so long: within it an attempt that lives comes
# to a commit, sees that it was superseded and stops. One that stands still for longer loses a save that nobody needs.
SWEEP_AFTER_S = 600.0
AGE_EVERY_S = 3600.0  # days are what is counted; looking oftener finds nothing
AGED_MAX = 16  # checkpoints after one save: each takes milliseconds to a second, and the next save waits for it


class Tidying:
    """Belongs to the worker's thread, but for `protect` and `yield_up`, which any thread may call."""

    def __init__(
        self,
        *,
        home: str,
        store: Home,
        catalog: Catalog,
        retention: Retention,
        journal: Journal,
        turn: AbstractContextManager[object],
        sure: bool,
        level: Level | None = None,
        clock: Clock,
        emit: Emit,
    ) -> None:
        """`turn`: held while checkpoints are removed. `sure`: whether no earlier attempt can still be writing.
        `level`: how full the disk is; None where it may become full."""
        self._home, self._store, self._catalog, self._retention = home, store, catalog, retention
        self._journal, self._turn, self._level, self._clock, self._emit = journal, turn, level, clock, emit
        self.waiting: Callable[[], Mapping[str, str]] = dict  # reasons by id, of what others are not through with
        self._sweep_at_s = None if sure else clock.monotonic() + SWEEP_AFTER_S
        self._protected: dict[str, str] = {}
        self._lately: Lately | None = None  # what has become known since the judging began
        self._unlike: frozenset[str] = frozenset()  # keys of which folder and catalog differ, whatever one does
        self._stuck: set[str] = set()  # ids of what should have gone, and is still there
        self._told: set[str] = set()  # what has failed, by checkpoint
        self._age_at_s = clock.monotonic()
        self._now = unhurried(clock)
        self._ageless: set[tuple[str, tuple[int, ...]]] = set()  # of which nothing can be dropped, by id and what stays
        self._put_off: set[str] = set()  # ids of what could not be aged, until it is looked at anew

    def protect(self, id: str, why: str) -> None:
        """Let it stay from now on: a fact that pins it is on its way to the journal."""
        self._protected = {**self._protected, id: why}

    def yield_up(self, id: str) -> None:
        """It is protected no more."""
        self._protected = {held: why for held, why in self._protected.items() if held != id}

    def tidy(self, require_newest: Callable[[], None]) -> None:
        """Remove what retention does not keep. Superseded from `require_newest` is raised; what else goes wrong is
        told."""
        try:
            require_newest()
            self._lately = Lately(self._store)
            with self._turn:
                self._journal.catch_up()
                self._learn()
                self._prune()
                self._age_when_due(require_newest)
                if self._journal.catch_up():  # there is room on the disk again
                    self._learn()
                self._sweep_when_due()
            if self._level is not None:
                self._level.after(partial(self._free, require_newest))
        except Superseded:
            raise
        except MementumError as error:  # what is kept is safe, and the next save tries again
            self._emit(Failed(what="removing old checkpoints", error=error.message, kept="all that retention keeps"))
            self.relist()

    def make_room(self, coming: int, require_newest: Callable[[], None]) -> str | None:
        """Make room for `coming` bytes that are about to be written; why there is none, or None. Superseded is raised;
        what else goes wrong is told, and then the disk itself will say whether it takes them."""
        level, free = self._level, partial(self._free, require_newest)
        return None if level is None else self._guarded(lambda: level.before(coming, free), None)

    def make_room_anyway(self, coming: int, require_newest: Callable[[], None]) -> bool:
        """The same, where the disk has refused them; whether it is worth trying again."""
        level, free = self._level, partial(self._free, require_newest)
        return level is not None and self._guarded(lambda: level.refused(coming, free), False)

    def _guarded(self, work: Callable[[], T], otherwise: T) -> T:
        try:
            return work()
        except Superseded:
            raise
        except MementumError as error:
            self._emit(Failed(what="making room", error=error.message, kept="all that retention keeps"))
            self.relist()
            return otherwise

    def _free(self, require_newest: Callable[[], None], need: int) -> Gave:
        """Remove what is worth least, by what is known now, of other processes too."""
        require_newest()
        self._lately = Lately(self._store)
        try:
            with self._turn:
                self._journal.catch_up()
                self._learn()
                return self._evict(self._catalog, need)
        except StoreError:  # a full disk takes no change of the catalog either, which is a cache
            with self._turn:
                gave = self._evict_without_a_catalog(need)
            self.relist()
            return gave

    def _evict_without_a_catalog(self, need: int) -> Gave:
        catalog = open_sqlite(None)
        try:
            refresh(catalog, self._home, self._store)
            return self._evict(catalog, need)
        finally:
            catalog.close()

    def _evict(self, catalog: Catalog, need: int) -> Gave:
        """What stays nevertheless gives nothing: others go in its place."""
        freed, stayed = 0, dict[str, str]()
        while True:
            entries = self._present(catalog)
            held = holdings(entries, self._store)
            waiting = {**self._waiting(), **stayed}
            found = give(entries, self._retention, need=need - freed, holdings=held, waiting=waiting)
            late = self._remove(found.verdicts, entries, by=noted.ROOM, catalog=catalog)
            self._journal.catch_up()
            freed += freed_by(with_stayed(found.verdicts, late), entries, held)
            if not late:
                return Gave(freed=freed, missing=found.missing)
            stayed |= late

    def relist(self) -> None:
        """Bring the catalog to what lies on the disk: a removal may have taken out of it what it could not delete, and
        the journal may say of checkpoints what it does not know yet."""
        try:
            with self._turn:
                self._refresh()
        except MementumError as error:
            self._emit(Failed(what="reading the checkpoints anew", error=error.message, kept="all checkpoints"))

    def _learn(self) -> None:
        """Take in what became known since the last save, of other processes too: somebody may have pinned something."""
        learn(self._catalog, self._home, self._store)
        self._journal.unlearnt = False

    def _refresh(self) -> None:
        refresh(self._catalog, self._home, self._store)
        self._journal.unlearnt = False

    def _prune(self) -> None:
        entries = self._present(self._catalog)
        self._remove(retain(entries, self._retention, waiting=self._waiting()), entries, by=noted.POLICY)

    def _remove(
        self, verdicts: tuple[Verdict, ...], entries: tuple[Entry, ...], *, by: str, catalog: Catalog | None = None
    ) -> dict[str, str]:
        """Reasons by id, of what is still there. The fact comes before the removal, but for one that was tried before:
        of that it comes when it has gone."""
        announced: set[str] = set()

        def note(verdict: Verdict) -> None:
            self._journal.append(noted.REMOVED, verdict.id, None, noted.removed(verdict.reason, by=by))

        def about_to(verdict: Verdict) -> None:
            if verdict.id not in self._stuck:
                announced.add(verdict.id)
                note(verdict)

        try:
            stayed = prune(
                verdicts,
                entries,
                home=self._home,
                store=self._store,
                catalog=catalog or self._catalog,
                emit=self._heard,
                stays=partial(self._stays, entries),
                about_to=about_to,
            )
        except StoreError as error:
            there = holding(stat.key for stat in self._store.list("step_"))
            for entry in entries:
                if entry.manifest.id in announced and entry.folder in there:
                    self._journal.append(noted.STAYED, entry.manifest.id, None, noted.stayed(error.message))
                    self._stuck.add(entry.manifest.id)
            raise
        for verdict in verdicts:
            if verdict.id in stayed and verdict.id in announced:
                self._journal.append(noted.STAYED, verdict.id, None, noted.stayed(stayed[verdict.id]))
                self._stuck.add(verdict.id)
            elif not verdict.keep and verdict.id not in stayed and verdict.id in self._stuck:
                note(verdict)
                self._stuck.discard(verdict.id)
        return stayed

    def _heard(self, event: Event) -> None:
        """What cannot be removed is tried again after each save, and told once."""
        if isinstance(event, Failed):
            if event.what in self._told:
                return
            self._told.add(event.what)
        self._emit(event)

    def _stays(self, entries: Sequence[Entry]) -> dict[str, str]:
        said = {} if self._lately is None else must_stay(self._lately, entries)
        return {**said, **self._waiting()}

    def _age_when_due(self, require_newest: Callable[[], None]) -> None:
        """Drop levels of what is old, and what has no level left; a few at a time, where many have become old."""
        if self._clock.monotonic() < self._age_at_s:
            return
        entries = self._present(self._catalog)
        now_s, waiting = self._now(), self._waiting()
        old = [
            one
            for one in aged(entries, self._retention.ageing, now_s=now_s, waiting=waiting)
            if (one.id, one.levels) not in self._ageless and one.id not in self._put_off
        ]
        gone = {one.id: one.reason for one in old[:AGED_MAX] if not one.levels}
        kept = tuple(Verdict(id=id, keep=False, reason=reason) for id, reason in gone.items())
        self._put_off.update(self._remove(kept, entries, by=noted.AGE))
        for one in old[:AGED_MAX]:
            if one.levels:
                self._wither(one, entries, require_newest)
        if len(old) <= AGED_MAX:
            self._age_at_s = self._clock.monotonic() + AGE_EVERY_S
            self._put_off.clear()

    def _wither(self, one: Aged, entries: Sequence[Entry], require_newest: Callable[[], None]) -> None:
        def still() -> None:
            why = self._stays(entries).get(one.id)
            if why is not None:
                raise GaveUp(why)

        def look() -> None:
            require_newest()
            still()

        done = wither(
            next(entry for entry in entries if entry.folder == one.folder),
            one.levels,
            reason=one.reason,
            home=self._home,
            store=self._store,
            catalog=self._catalog,
            emit=self._heard,
            require_newest=look,
            still=still,
        )
        if isinstance(done, Unsettled):
            if done.reason == NOTHING:
                self._ageless.add((one.id, one.levels))
            else:
                self._put_off.add(one.id)
        else:
            self._journal.append(noted.AGED, one.id, None, noted.aged(one.reason, done.levels, by=noted.AGE))

    def _present(self, catalog: Catalog) -> tuple[Entry, ...]:
        """The checkpoints by what lies there now: another machine, which has a catalog of its own, may have removed
        some, and this one may have been lost, or may not have taken what we told it. One listing tells."""
        entries = self._entries(catalog)
        unlike = self._differing(entries)
        if unlike <= self._unlike:
            return entries
        refresh(catalog, self._home, self._store)
        entries = self._entries(catalog)
        self._unlike = self._differing(entries)  # such as manifests that cannot be read
        return entries

    def _differing(self, entries: tuple[Entry, ...]) -> frozenset[str]:
        lying = holding(stat.key for stat in self._store.list("step_")).values()
        return frozenset(lying) ^ {f"{one.folder}/{manifest_name(one.manifest.generation)}" for one in entries}

    def _entries(self, catalog: Catalog) -> tuple[Entry, ...]:
        return tuple(map(self._as_known, catalog.entries(self._home)))

    def _as_known(self, entry: Entry) -> Entry:
        """With what the journal could not take yet. Pins that were given up hold until it can."""
        late = facts.known(fact for fact in self._journal.waiting if fact.checkpoint == entry.manifest.id)
        return replace(entry, judged=late.judged or entry.judged, pinned=entry.pinned or late.pinned)

    def _waiting(self) -> Mapping[str, str]:
        return {**self.waiting(), **{id: f"pinned: {why}" for id, why in self._protected.items()}}

    def _sweep_when_due(self) -> None:
        """What an attempt left that may have lived when we began; this thread saves, so that no save is in flight."""
        if self._sweep_at_s is not None and self._clock.monotonic() >= self._sweep_at_s:
            sweep(self._store, emit=self._emit)
            self._sweep_at_s = None
