"""Mending: what a run does about a checkpoint that was found damaged, in its root or on a tier, told as facts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from mementum.catalog import facts
from mementum.catalog.rebuild import learn
from mementum.clock import Clock, timestamp
from mementum.errors import MementumError, Superseded
from mementum.events import Emit, Failed, Note
from mementum.execute.compress import Pause
from mementum.mirroring import require_newest_there
from mementum.opening import Opened
from mementum.places import Site, lose
from mementum.placing import AS_IT_IS
from mementum.records import Damage, Entry, Fact
from mementum.recover.choose import candidates
from mementum.recover.donors import Donor
from mementum.repairing import Repaired, Unrepairable, repair

Tell = Callable[[str, str, int, Mapping[str, Any]], None]  # kind of fact, id, step, values
ROOT = "the root"  # what the task's own folder is called among the places
NAMED_MAX = 20  # files that a fact names: a checkpoint has a few
SHOWN_MAX = 3  # ranges of bytes in an event: `mementum repair` tells all of them


class Mending:
    """Repairs checkpoints of a task in one of its places from the others."""

    def __init__(
        self,
        opened: Opened,
        *,
        tell: Tell,
        require_newest: Callable[[], None],
        turn: AbstractContextManager[object] | None = None,
        emit: Emit,
    ) -> None:
        """`require_newest`: Superseded if another attempt has the task. `turn`: as with `repair`."""
        self._opened, self._tell, self._require_newest, self._turn = opened, tell, require_newest, turn
        self._emit = emit

    def mend(self, entry: Entry, site: Site | None, pause: Pause, *, hurry: bool = False) -> Entry | None:
        """Put a checkpoint right on a tier, or in the root; as it is there now, or None where that cannot be. It is
        told, and Superseded is raised. `hurry`: somebody waits."""
        where, manifest = ROOT if site is None else site.name, entry.manifest
        donors = [
            Donor(name=one.name, store=one.prompt if hurry else one.store) for one in self._usable() if one is not site
        ]
        if site is not None:
            donors.insert(0, Donor(name=ROOT, store=self._opened.store))
        if not donors:
            return None
        what = f"repairing {manifest.id} of step {manifest.step} in {where}"
        try:
            done = repair(
                entry,
                store=self._opened.store if site is None else site.store,
                donors=donors,
                require_newest=lambda: self._look(site),
                pause=pause,
                form=AS_IT_IS if site is None else site.form,
                turn=self._turn if site is None else None,
            )
        except Superseded as superseded:
            if site is None or site.lost is not None:
                raise
            lose(site, superseded, self._emit)
            return None
        except MementumError as error:
            self._emit(Failed(what=what, error=error.message, kept="all copies, as they are"))
            return None
        if isinstance(done, Unrepairable):
            self._emit(Failed(what=what, error=_told(done), kept="what is good of it, and all other checkpoints"))
            return None
        values = {} if site is None else {"tier": site.name}
        if isinstance(done, Repaired):
            self._enter(done, site)
            names = ", ".join(key.rpartition("/")[2] for key in done.keys[:NAMED_MAX])
            given = ", ".join(done.donors) or where
            self._tell("repaired", manifest.id, manifest.step, {**values, "from": given, "files": names})
            self._emit(Note(text=f"checkpoint {manifest.id} of step {manifest.step} was put right in {where}: {names}"))
        self._tell("verified", manifest.id, manifest.step, values)
        folder = done.folder if isinstance(done, Repaired) else entry.folder
        return replace(entry, manifest=done.manifest, folder=folder, damaged=None)

    def mend_here(self, entry: Entry) -> Entry | None:
        """The same in the root, at a start, which waits for it."""
        return self.mend(entry, None, _goes_on, hurry=True)

    def _look(self, site: Site | None) -> None:
        self._require_newest()
        if site is not None:
            require_newest_there(site.store, self._opened.attempt.number, task=self._opened.task)

    def _enter(self, done: Repaired, site: Site | None) -> None:
        if site is None:
            self._opened.catalog.add(self._opened.home, done.manifest, done.folder)
        else:
            site.owners.forget(done.folder)
            site.catalog.add(site.home, done.manifest, done.folder)

    def _usable(self) -> list[Site]:
        return [site for site in self._opened.places.sites if site.joined and not site.silent and site.lost is None]


def mend_at_start(opened: Opened, mending: Mending) -> None:
    """Repair in the root what is better than all that is whole there: newer, or of a better health. What a tier alone
    has is fetched afterwards."""
    entries = list(opened.catalog.entries(opened.home))
    known = {entry.manifest.id for entry in entries}
    unreadable = {damage.key.partition("/")[0] for damage in opened.unreadable}
    if unreadable:
        for site in opened.places.sites:
            if site.joined and not site.silent and site.lost is None:
                there = [entry for entry in site.entries(opened.store) if entry.folder in unreadable]
                entries += [replace(one, damaged="unreadable") for one in there if one.manifest.id not in known]
                known |= {one.manifest.id for one in there}
    damaged = {entry.manifest.id for entry in entries if entry.damaged is not None}
    for entry in candidates([replace(entry, damaged=None) for entry in entries]):
        if entry.manifest.id not in damaged or mending.mend_here(entry) is not None:
            return


def tell_at_start(opened: Opened, *, clock: Clock, emit: Emit) -> Tell:
    """Facts go right into the journal: nobody else writes on it yet."""

    def tell(kind: str, id: str, step: int, values: Mapping[str, Any]) -> None:
        fact = Fact(kind=kind, time=timestamp(clock.now()), checkpoint=id, step=step, values=values)
        try:
            opened.store.append(opened.journal, facts.render(fact))
            learn(opened.catalog, opened.home, opened.store)
        except MementumError as error:  # a full disk must not keep a run from coming back
            emit(Failed(what=f"a fact ({kind})", error=error.message, kept="all checkpoints"))

    return tell


def in_words(damage: Sequence[Damage]) -> str:
    """The first finding, and how many there are."""
    more = f" ({len(damage)} findings in all)" if len(damage) > 1 else ""
    return f"{damage[0].key}: {damage[0].what}{more}"


def _told(done: Unrepairable) -> str:
    parts = [done.reason, *(f"{one.key}: {one.what}" for one in done.damage[:SHOWN_MAX])]
    parts += [f"{name} does not answer: {why}" for name, why in done.silent.items()]
    return "; ".join(parts)


def _goes_on() -> None:
    """A start waits for it."""
