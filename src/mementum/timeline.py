"""The timeline of a run: the checkpoints of the states it comes from, and marks on those that it leaves behind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from mementum.catalog import facts, plans
from mementum.catalog.plans import Plan
from mementum.catalog.rebuild import refresh
from mementum.catalog.sql import open_sqlite
from mementum.clock import Clock, timestamp
from mementum.decide.lineage import lineage, with_siblings
from mementum.errors import MementumError, StoreError
from mementum.events import Emit, Failed
from mementum.execute.commit import new_id
from mementum.opening import Opened
from mementum.records import Entry, Fact, Health
from mementum.storage.store import Store

BEHIND = "a rollback went back behind it"  # why a checkpoint of the branch that was left is not trusted


def entries_of(opened: Opened, *, emit: Emit) -> Sequence[Entry]:
    """All checkpoints of the task, oldest first; from the manifests themselves where the catalog cannot be asked.

    StoreError if these cannot be read either."""
    try:
        return opened.catalog.entries(opened.home)
    except StoreError as error:
        emit(Failed(what="asking the catalog", error=error.message, kept="the checkpoints, whose manifests are read"))
    catalog = open_sqlite(None)
    try:
        refresh(catalog, opened.home, opened.store)
        return catalog.entries(opened.home)
    finally:
        catalog.close()


def states_of(store: Store, entries: Sequence[Entry], base: str | None, own: Iterable[Entry] = ()) -> tuple[Entry, ...]:
    """The checkpoints of a timeline, newest step first: `own` ones, and those that `base`, from which they began, comes
    from. StoreError if plans cannot be read."""
    line = (*own, *(() if base is None else lineage(entries, base)))
    left = ((plan.after_seq, plan.step) for plan in plans.plans(store) if isinstance(plan, Plan))
    return with_siblings(line, entries, left)


def mark_left_behind(opened: Opened, plan: Plan, entries: Iterable[Entry], *, clock: Clock, emit: Emit) -> None:
    """Durable on return: what the plan, now that it is done, has left behind is suspect. Twice is once."""
    told = tuple(_marks(plan, entries, timestamp(clock.now())))
    if not told:
        return
    what, kept = "marking what a rollback has left behind", "the rollback"
    try:
        key = f"{plans.FOLDER}{new_id(clock.now())}.json"
        opened.store.put(key, [facts.render(fact) for fact in told])
        refresh(opened.catalog, opened.home, opened.store)
    except MementumError as error:  # it matters little: a start takes the newest one, and that is of the new branch
        emit(Failed(what=what, error=error.message, kept=kept))


def _marks(plan: Plan, entries: Iterable[Entry], now: str) -> Iterator[Fact]:
    behind = frozenset(plan.behind)
    onset = {} if plan.onset is None else {"onset": plan.onset}
    for entry in entries:
        manifest = entry.manifest
        if manifest.id in behind and entry.health is Health.CLEAN:
            values = {"health": Health.SUSPECT.value, "why": BEHIND, **onset}
            yield Fact(kind="health", time=now, checkpoint=manifest.id, step=manifest.step, values=values)
