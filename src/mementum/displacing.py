"""Displacing: what a tier's retention does not keep, or it has no room for, leaves it; what is old gets lighter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mementum.catalog.lately import OF_ALL_COPIES, Lately
from mementum.catalog.rebuild import holding
from mementum.clock import Clock, unhurried
from mementum.decide.ageing import Aged, Ageing, aged
from mementum.decide.filling import freed_by, give, with_stayed
from mementum.decide.retain import Retention, retain
from mementum.events import Displaced, Emit, Event, Failed, Removed, Withered
from mementum.execute.compress import GaveUp
from mementum.execute.holdings import holdings
from mementum.mirroring import require_newest_there
from mementum.opening import Opened
from mementum.places import Site
from mementum.pruning import must_stay, prune
from mementum.records import Entry, Verdict
from mementum.rewriting import Unsettled
from mementum.vanishing import tell_vanished
from mementum.watermarks import Gave
from mementum.withering import wither

Tell = Callable[[str, str, int, Mapping[str, Any]], None]  # kind of fact, id, step, values


class Displacing:
    """Of one tier. It belongs to the thread that places there."""

    def __init__(self, opened: Opened, site: Site, *, best_of: str, tell: Tell, clock: Clock, emit: Emit) -> None:
        """`best_of`: the metric of the tier's best. `tell` queues a fact."""
        wishes, days = site.wishes, site.wishes.retention_days
        self._opened, self._site, self._tell, self._emit = opened, site, tell, emit
        self._now = unhurried(clock)
        self._ageless: set[str] = set()  # ids of copies that could not be aged, which was told
        self._retention = Retention(
            last=wishes.keep_last,
            every_steps=wishes.keep_every_steps,
            best=wishes.keep_best or 0,
            best_of=best_of,
            ageing=Ageing(level_0=days.level_0, level_1=days.level_1, level_2=days.level_2),
        )

    def require_newest(self) -> None:
        """Superseded if a later attempt has the tier."""
        require_newest_there(self._site.store, self._opened.attempt.number, task=self._opened.task)

    def free(self, need: int) -> Gave:
        """Remove there what is worth least. What stays nevertheless gives nothing: others go in its place."""
        freed, stayed = 0, dict[str, str]()
        while True:
            lately = Lately(self._opened.store, kinds=OF_ALL_COPIES)
            entries = self._present()
            held = holdings(entries, self._site.store)
            found = give(entries, self._retention, need=need - freed, holdings=held, waiting=stayed)
            late = self._remove(found.verdicts, entries, lately)
            freed += freed_by(with_stayed(found.verdicts, late), entries, held)
            if not late:
                return Gave(freed=freed, missing=found.missing)
            stayed |= late

    def tidy(self) -> None:
        """Take away there what its retention does not keep, and drop there what has grown old."""
        lately = Lately(self._opened.store, kinds=OF_ALL_COPIES)
        entries = self._entries()
        if not all(verdict.keep for verdict in retain(entries, self._retention)):
            entries = self._present()
            self._remove(retain(entries, self._retention), entries, lately)
        left = self._entries()
        old = aged(left, self._retention.ageing, now_s=self._now())
        gone = tuple(Verdict(id=one.id, keep=False, reason=one.reason) for one in old if not one.levels)
        self._remove(gone, left, lately)
        for one in old:
            if one.levels and one.id not in self._ageless:
                self._wither(one, left, lately)

    def _entries(self) -> tuple[Entry, ...]:
        return self._site.entries(self._opened.store)

    def _present(self) -> tuple[Entry, ...]:
        """What lies there by one listing: others may have taken some away, which then counts for nothing."""
        site, entries = self._site, self._entries()
        there = holding(stat.key for stat in site.store.list("step_"))
        gone = tuple(entry for entry in entries if entry.folder not in there)
        for entry in gone:
            site.catalog.forget(site.home, entry.folder)
            site.owners.forget(entry.folder)
        tell_vanished(site, gone, self._tell, self._emit)
        return tuple(entry for entry in entries if entry.folder in there)

    def _wither(self, one: Aged, entries: Sequence[Entry], lately: Lately) -> None:
        site = self._site

        def still() -> None:
            why = must_stay(lately, entries).get(one.id)
            if why is not None:
                raise GaveUp(why)

        def look() -> None:
            self.require_newest()
            still()

        site.owners.forget(one.folder)  # a level with frozen weights may go
        done = wither(
            next(entry for entry in entries if entry.folder == one.folder),
            one.levels,
            reason=one.reason,
            home=site.home,
            store=site.store,
            catalog=site.catalog,
            emit=self._heard_of_ageing,
            require_newest=look,
            still=still,
        )
        if isinstance(done, Unsettled):
            self._ageless.add(one.id)
            return
        values = {"tier": site.name, "url": site.url, "generation": done.generation, "sent": 0}
        values |= {"size": done.size, "levels": list(done.levels)}  # what lies there has fewer levels from now on
        self._tell("placed", done.id, done.step, values)

    def _heard_of_ageing(self, event: Event) -> None:
        """Of the root's own checkpoint nothing was dropped."""
        if not isinstance(event, Withered):
            self._emit(event)

    def _remove(self, verdicts: Sequence[Verdict], entries: Sequence[Entry], lately: Lately) -> dict[str, str]:
        """Reasons by id, of what stays nevertheless."""
        if all(verdict.keep for verdict in verdicts):
            return {}
        site, by_id = self._site, {entry.manifest.id: entry for entry in entries}

        def heard(event: Event) -> None:
            """A removal there is none from the root."""
            if isinstance(event, Removed):
                site.owners.forget(by_id[event.id].folder)
                self._tell("displaced", event.id, event.step, {"tier": site.name, "url": site.url, "why": event.reason})
                self._emit(Displaced(id=event.id, step=event.step, tier=site.name, reason=event.reason))
            elif isinstance(event, Failed):
                self._emit(event)

        self.require_newest()
        return prune(
            verdicts,
            entries,
            home=site.home,
            store=site.store,
            catalog=site.catalog,
            emit=heard,
            stays=lambda: must_stay(lately, entries),
        )
