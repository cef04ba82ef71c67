"""Clearing: what a person has removed by hand, by a policy or for want of room, beside a training or without one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

from mementum.catalog import noted, plans
from mementum.catalog.catalog import Catalog
from mementum.catalog.lately import PLANNED, Lately
from mementum.catalog.place import is_remote
from mementum.catalog.rebuild import holding, refresh
from mementum.catalog.sql import open_sqlite
from mementum.clock import Clock, timestamp
from mementum.config.settings import KEEP_BEST, KEEP_SPREAD
from mementum.decide.filling import freed_by, give, with_stayed
from mementum.decide.retain import Retention, retain
from mementum.errors import StoreError, TaskInUse
from mementum.events import Emit
from mementum.execute.claim import claim, withdraw
from mementum.execute.commit import new_id
from mementum.execute.holdings import holdings, size_of
from mementum.execute.remove import orphans, outdated
from mementum.pruning import must_stay, prune, sweep
from mementum.records import Entry, Fact, Granularity, Verdict, record
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore, is_full
from mementum.storage.store import Home

# Why leftovers stay, whose removal begins with a small file: the claim that tells them from a save in progress.
FULL = "the disk is so full that the task cannot be claimed"
UNSURE = "an earlier process of the task may still be writing"
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
    lately = Lately(store)
    entries = _known(store, home, catalog)
    verdicts = retain(entries, retention, waiting=_waiting(store, entries))
    held = holdings(entries, store)
    if not dry_run:
        verdicts = _remove(
            verdicts, entries, store, home, catalog, lately, clock=clock, emit=emit, by=by or noted.person()
        )
    return Cleared(verdicts=verdicts, entries=entries, freed=freed_by(verdicts, entries, held))


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
    lately = Lately(store)
    entries = _known(store, home, catalog)
    held = holdings(entries, store)
    waiting, left, freed = _waiting(store, entries), entries, 0
    out: dict[str, Verdict] = {}
    while True:  # what stays nevertheless gives nothing: others go in its place
        found = give(left, USUAL, need=need - freed, holdings=held, waiting=waiting)
        verdicts = found.verdicts
        if not dry_run:
            verdicts = _remove(
                verdicts, left, store, home, catalog, lately, clock=clock, emit=emit, by=by or noted.person()
            )
        out |= {verdict.id: verdict for verdict in verdicts}
        gone = {verdict.id for verdict in verdicts if not verdict.keep}
        freed += freed_by(verdicts, left, held)
        stayed = {
            now.id: now.reason for now, then in zip(verdicts, found.verdicts, strict=True) if now.keep and not then.keep
        }
        if not stayed:
            break
        waiting |= stayed
        left = tuple(entry for entry in left if entry.manifest.id not in gone)
    order = {entry.manifest.id: entry.order for entry in entries}
    every = tuple(sorted(out.values(), key=lambda verdict: order[verdict.id], reverse=True))
    return Cleared(verdicts=every, entries=entries, freed=freed, missing=found.missing)


def clear_leftovers(root: Path, task: str, store: Home, *, clock: Clock, emit: Emit, dry_run: bool) -> Cleared:
    """Remove what saves and removals that were cut short have left in a task. Only the holder of a task can tell that
    from a save in progress: it is claimed for that, and a training that starts meanwhile waits. Where a training
    has it, its own next start does the same, and `held` says so."""
    parts = (*orphans(store), *outdated(store))
    left = store.unfinished() if isinstance(store, LocalStore) else ()
    found = (*(stat.key for stat in left), *parts)
    freed = sum(stat.size for stat in left) + sum(size_of(store, key) or 0 for key in parts)
    nothing = Cleared(verdicts=(), entries=(), freed=freed, leftovers=found)
    if dry_run or not found:
        return nothing
    held = _sweep_alone(root, task, store, clock=clock, emit=emit)
    return nothing if held is None else replace(nothing, freed=0, held=held)


def _sweep_alone(root: Path, task: str, store: Home, *, clock: Clock, emit: Emit) -> str | None:
    """Sweep a task that nobody else has; why it was not swept, or None."""
    try:
        attempt = claim(store, task=task, facts={}, clock=clock, emit=emit, shared=is_remote(root), clears=True)
    except TaskInUse as in_use:
        return in_use.message
    except StoreError as error:
        if not is_full(error):
            raise
        return FULL
    try:
        if attempt.lease is not None:
            attempt.lease.start()
        if not attempt.sure:
            return UNSURE
        sweep(store, emit=emit)
    finally:
        withdraw(store, attempt)
    return None


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
    try:
        refresh(catalog, home, store, strict=True)
        return tuple(catalog.entries(home))
    except (
        StoreError
    ):  # a full disk takes no change of the catalog, which is a cache; the store's own faults come again
        with closing(open_sqlite(None)) as anew:
            refresh(anew, home, store, strict=True)
            return tuple(anew.entries(home))


def _waiting(store: Home, entries: Sequence[Entry]) -> dict[str, str]:
    plan = plans.newest(store)
    exact = [entry.manifest for entry in entries if entry.manifest.granularity is Granularity.FULL]
    if plan is None or not plans.is_pending(plan, ((manifest.seq, manifest.attempt) for manifest in exact)):
        return {}
    return {plan.target: PLANNED}


def _remove(
    verdicts: tuple[Verdict, ...],
    entries: Sequence[Entry],
    store: Home,
    home: str,
    catalog: Catalog,
    lately: Lately,
    *,
    clock: Clock,
    emit: Emit,
    by: str,
) -> tuple[Verdict, ...]:
    """Who removes what stands in a file of facts before the first of it goes, or on a full disk as soon as it takes
    one; what is there nevertheless in one more. The verdicts as they have come out."""
    gone = [verdict for verdict in verdicts if not verdict.keep]
    if not gone:
        return verdicts
    stayed: dict[str, str] = {}
    try:
        with closing(open_sqlite(None)) as none:  # the catalog lies on the same disk
            alone = partial(
                prune, home=home, store=store, catalog=none, emit=emit, stays=partial(must_stay, lately, entries)
            )
            tried = _announce(gone, entries, store, alone, stayed, clock=clock, by=by)
        for entry in entries:
            if entry.manifest.id in tried - stayed.keys():
                catalog.forget(home, entry.folder)
        rest = [verdict for verdict in verdicts if verdict.id not in tried]
        stayed |= prune(
            rest, entries, home=home, store=store, catalog=catalog, emit=emit, stays=partial(must_stay, lately, entries)
        )
    except StoreError as error:
        there = holding(stat.key for stat in store.list("step_"))
        left = {entry.manifest.id for entry in entries if entry.folder in there}
        _say_what_stayed(store, {verdict.id: error.message for verdict in gone if verdict.id in left}, clock)
        went = sum(verdict.id not in left for verdict in gone)
        error.kept = f"all that is to be kept; {went} of the {len(gone)} that are not have gone"
        error.next_command = error.next_command or "mementum ls ROOT shows what is left; then the same again"
        raise
    _say_what_stayed(store, stayed, clock)
    return with_stayed(verdicts, stayed)


def _announce(
    gone: Sequence[Verdict],
    entries: Sequence[Entry],
    store: Home,
    remove: Callable[[Sequence[Verdict], Sequence[Entry]], Mapping[str, str]],
    stayed: dict[str, str],
    *,
    clock: Clock,
    by: str,
) -> set[str]:
    """Put the facts that say what goes. On a full disk, which takes none, the oldest goes first, one after the other
    until there is room for them; which were tried so. Of these, `stayed` is told which are still there, and why."""
    order = {entry.manifest.id: entry.order for entry in entries}
    waiting = sorted(gone, key=lambda verdict: order[verdict.id], reverse=True)
    tried: set[str] = set()
    while True:
        now_s = clock.now()
        time = timestamp(now_s)
        found = [
            Fact(kind=noted.REMOVED, time=time, checkpoint=verdict.id, values=noted.removed(verdict.reason, by=by))
            for verdict in gone
            if verdict.id not in stayed
        ]
        try:
            noted.from_outside(store, new_id(now_s), found)
            return tried
        except StoreError as error:
            if not (is_full(error) and waiting):
                raise
        next_one = waiting.pop()
        tried.add(next_one.id)
        stayed |= remove([next_one], entries)


def _say_what_stayed(store: Home, stayed: Mapping[str, str], clock: Clock) -> None:
    if stayed:
        now_s = clock.now()
        time = timestamp(now_s)
        found = [
            Fact(kind=noted.STAYED, time=time, checkpoint=id, values=noted.stayed(why)) for id, why in stayed.items()
        ]
        noted.from_outside(store, new_id(now_s), found)
