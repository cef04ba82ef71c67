"""Tidying: what retention does not keep is taken away after a save, and the catalog told what it must know for that."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

from mementum.catalog import facts
from mementum.catalog.catalog import Catalog
from mementum.catalog.rebuild import learn, refresh
from mementum.clock import Clock
from mementum.decide.retain import Retention, retain
from mementum.errors import MementumError, Superseded
from mementum.events import Emit, Failed
from mementum.journal import Journal
from mementum.pruning import prune, sweep
from mementum.records import Entry, Verdict
from mementum.storage.store import Home

# After a takeover from an attempt that may live, its leftovers stay for so long: within it an attempt that lives comes
# to a commit, sees that it was superseded and stops. One that stands still for longer loses a save that nobody needs.
SWEEP_AFTER_S = 600.0


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
        clock: Clock,
        emit: Emit,
    ) -> None:
        """`turn`: held while checkpoints are removed. `sure`: whether no earlier attempt can still be writing."""
        self._home, self._store, self._catalog, self._retention = home, store, catalog, retention
        self._journal, self._turn, self._clock, self._emit = journal, turn, clock, emit
        self._sweep_at_s = None if sure else clock.monotonic() + SWEEP_AFTER_S
        self._protected: dict[str, str] = {}

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
            with self._turn:
                self._journal.catch_up()
                self._learn()
                self._prune()
                if self._journal.catch_up():  # there is room on the disk again
                    self._learn()
                self._sweep_when_due()
        except Superseded:
            raise
        except MementumError as error:  # what is kept is safe, and the next save tries again
            self._emit(Failed(what="removing old checkpoints", error=error.message, kept="all that retention keeps"))
            self.relist()

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
        entries = tuple(map(self._as_known, self._catalog.entries(self._home)))
        verdicts = tuple(self._spared(verdict) for verdict in retain(entries, self._retention))
        for verdict in verdicts:
            if not verdict.keep:
                self._journal.append("removed", verdict.id, None, {"reason": verdict.reason})
        prune(verdicts, entries, home=self._home, store=self._store, catalog=self._catalog, emit=self._emit)

    def _as_known(self, entry: Entry) -> Entry:
        """With what the journal could not take yet. Pins that were given up hold until it can."""
        late = facts.known(fact for fact in self._journal.waiting if fact.checkpoint == entry.manifest.id)
        return replace(entry, judged=late.judged or entry.judged, pinned=entry.pinned or late.pinned)

    def _spared(self, verdict: Verdict) -> Verdict:
        why = self._protected.get(verdict.id)
        return verdict if why is None else replace(verdict, keep=True, reason=f"pinned: {why}")

    def _sweep_when_due(self) -> None:
        """What an attempt left that may have lived when we began; this thread saves, so that no save is in flight."""
        if self._sweep_at_s is not None and self._clock.monotonic() >= self._sweep_at_s:
            sweep(self._store, emit=self._emit)
            self._sweep_at_s = None
