"""Clearing: what a person has removed by hand, by a policy or for want of room, beside a training or without one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mementum.catalog import noted, plans
from mementum.catalog.catalog import Catalog
from mementum.catalog.rebuild import refresh
from mementum.clock import Clock, timestamp
from mementum.config.settings import KEEP_BEST, KEEP_SPREAD
from mementum.decide.filling import give
from mementum.decide.retain import Retention, retain
from mementum.errors import TaskInUse
from mementum.events import Emit
from mementum.execute.commit import new_id
from mementum.execute.holdings import holdings, size_of
from mementum.execute.remove import orphans, outdated
from mementum.opening import open_task
from mementum.pruning import prune
from mementum.records import Entry, Fact, Granularity, Verdict, record
from mementum.storage.disk import PosixDisk
from mementum.storage.store import Home

USUAL = Retention(last=None, spread=KEEP_SPREAD, best=KEEP_BEST)  # what a run keeps for good where it is told nothing


@record
class Cleared:
    """What was removed, or would be: a verdict on each checkpoint, newest first. `freed`: bytes of what goes; files
    that others share with it stay and do not count. `missing`: bytes wanted beyond that, and all that is left is
    protected. `leftovers`: keys of what saves and removals that were cut short have left; `held`: why those stay."""

    verdicts: tuple[Verdict, ...]
    entries: tuple[Entry, ...]
    freed: int
    missing: int = 0
    leftovers: tuple[str, ...] = ()
    held: str | None = None


def forget_now(
    store: Home,
    home: str,
    catalog: Catalog,
    retention: Retention,
    *,
    clock: Clock,
    emit: Emit,
    dry_run: bool,
    by: str | None = None,
) -> Cleared:
    """Apply a retention to a task's checkpoints. `by`: who wants it; None: the user of this process.

    It may be called beside a training that lives: only whole checkpoints go, by the same rules as its own retention,
    and what a run comes back to is never among them."""
    entries = _known(store, home, catalog)
    verdicts = retain(entries, retention, waiting=_waiting(store, entries))
    freed = _freed(verdicts, entries, store)
    if not dry_run:
        _remove(verdicts, entries, store, home, catalog, clock=clock, emit=emit, by=by or noted.person())
    return Cleared(verdicts=verdicts, entries=entries, freed=freed)


def free(
    store: Home,
    home: str,
    catalog: Catalog,
    *,
    need: int,
    clock: Clock,
    emit: Emit,
    dry_run: bool,
    by: str | None = None,
) -> Cleared:
    """Remove what is worth least until `need` bytes have come free, never what is protected; 0: nothing but a look."""
    entries = _known(store, home, catalog)
    held = holdings(entries, store)
    found = give(entries, USUAL, need=need, holdings=held, waiting=_waiting(store, entries))
    if not dry_run:
        _remove(found.verdicts, entries, store, home, catalog, clock=clock, emit=emit, by=by or noted.person())
    return Cleared(verdicts=found.verdicts, entries=entries, freed=found.freed, missing=found.missing)


def clear_leftovers(root: Path, task: str, store: Home, *, clock: Clock, emit: Emit, dry_run: bool) -> Cleared:
    """Remove what saves and removals that were cut short have left in a task. Only the holder of a task can tell that
    from a save in progress: it is claimed for that, which is one more attempt. Where a training has it, its own next
    start does the same, and `held` says so."""
    found = (*orphans(store), *outdated(store))
    freed = sum(size_of(store, key) or 0 for key in found)
    nothing = Cleared(verdicts=(), entries=(), freed=freed, leftovers=found)
    if dry_run or not found:
        return nothing
    try:
        open_task(root, task, about={}, clock=clock, emit=emit).close()  # a claim sweeps
    except TaskInUse as in_use:
        return Cleared(verdicts=(), entries=(), freed=0, leftovers=found, held=in_use.message)
    return nothing


def bytes_over(folder: Path, share: float) -> int:
    """How many bytes must come free on the file system of a folder, so that no more than `share` of it is used."""
    usage = PosixDisk().usage(str(folder))
    return max(0, usage.used - int(share * usage.size))


def shared_out(need: int, held: Sequence[int]) -> tuple[int, ...]:
    """How much each of several tasks gives, by what they hold."""
    total = sum(held)
    return tuple(-(-need * size // total) if total else 0 for size in held)


def _known(store: Home, home: str, catalog: Catalog) -> tuple[Entry, ...]:
    """The checkpoints of a task, by what lies there now. NotReadableHere if a newer mementum has saved there: which
    files its checkpoints need cannot be known."""
    refresh(catalog, home, store, strict=True)
    return tuple(catalog.entries(home))


def _waiting(store: Home, entries: Sequence[Entry]) -> dict[str, str]:
    plan = plans.newest(store)
    exact = [entry.manifest for entry in entries if entry.manifest.granularity is Granularity.FULL]
    if plan is None or not plans.is_pending(plan, ((manifest.seq, manifest.attempt) for manifest in exact)):
        return {}
    return {plan.target: "a rollback that is planned goes back to it"}


def _freed(verdicts: Sequence[Verdict], entries: Sequence[Entry], store: Home) -> int:
    """Bytes of files that only what goes has."""
    kept = {verdict.id for verdict in verdicts if verdict.keep}
    held = holdings(entries, store)
    stays = {blob.key for entry in entries if entry.manifest.id in kept for blob in held[entry.folder]}
    goes = {blob.key: blob.size for entry in entries for blob in held[entry.folder] if blob.key not in stays}
    return sum(goes.values())


def _remove(
    verdicts: Sequence[Verdict],
    entries: Sequence[Entry],
    store: Home,
    home: str,
    catalog: Catalog,
    *,
    clock: Clock,
    emit: Emit,
    by: str,
) -> None:
    """Who removes what stands in a file of facts before the first of it goes."""
    now_s = clock.now()
    gone = [verdict for verdict in verdicts if not verdict.keep]
    if not gone:
        return
    time = timestamp(now_s)
    found = [
        Fact(kind=noted.REMOVED, time=time, checkpoint=verdict.id, values=noted.removed(verdict.reason, by=by))
        for verdict in gone
    ]
    noted.from_outside(store, new_id(now_s), found)
    prune(verdicts, entries, home=home, store=store, catalog=catalog, emit=emit)
