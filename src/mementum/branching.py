"""Branching: by hand, from which checkpoint the next start of a task goes on, and what it leaves out."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, takewhile
from pathlib import Path
from shlex import quote

from mementum.catalog import facts, plans, tasks
from mementum.catalog.address import Address, parse, select
from mementum.catalog.plans import Cancelled, Plan
from mementum.catalog.rebuild import refresh
from mementum.catalog.sql import open_sqlite
from mementum.clock import Clock, SystemClock, timestamp
from mementum.decide.rollback import Course, course_of, detours_after, in_force
from mementum.errors import CheckpointDamaged, MementumError, NoSuchAddress, NotReadableHere, UsageError
from mementum.execute import attempts
from mementum.execute import head as heads
from mementum.execute.commit import new_id
from mementum.execute.leftovers import leftovers
from mementum.execute.room import SHM
from mementum.format import context as contexts
from mementum.format import typed_json
from mementum.opening import open_catalog, root_folder
from mementum.ram import claim_of, key_of
from mementum.records import Entry, Fact, Granularity, Health, record
from mementum.recover.verify import verify
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore
from mementum.storage.store import Store
from mementum.timeline import states_of

GROUPS_MAX = 10**7  # batches' groups that one plan leaves out: more are a slip of the pen, and drawing them takes hours
RANGES_MAX = 100  # stretches of them: what a person types, or a script that knows its bad shards
COURSE = "rollback"  # where a context has what rollbacks have made of the run
BY_HAND = "by hand"  # why, where no reason is given
PINNED = "a rollback goes back to it"
BY = "mementum rollback"  # whose the pin is
SUSPECT = "a rollback by hand leaves out a batch that is in it"


@record
class Branch:
    """A rollback by hand. `pins`: whether the target gets a pin by it; `suspect`: checkpoints of the branch that is
    left which a batch that is left out had a part in, oldest first."""

    task: str
    home: str
    plan: Plan
    target: Entry
    newest: Entry
    pins: bool
    suspect: tuple[Entry, ...]
    others: tuple[Fact, ...]  # what follows from the plan, and becomes durable with it


def rollback(
    root: str | os.PathLike[str],
    task: str,
    *,
    to: str | int,
    skip_batches: range | Sequence[range] = (),
    lr_scale: float = 1.0,
    why: str = BY_HAND,
    force: bool = False,
    clock: Clock | None = None,
) -> Branch:
    """Let the next start of `task` go on from the checkpoint that `to` selects (as in an address: a step, `clean`, the
    beginning of an id, …), whatever was saved after it. The checkpoint is pinned. Durable on return.

    skip_batches: steps whose batches are left out, `range(A, B)` without B, or several of them. Steps are counted as
        they were on the branch that is left; A is after the checkpoint's step.
    lr_scale: what the learning rates that were stored there are multiplied by.
    force: go back to a checkpoint that is suspect or diverged all the same, or while a dead process's newest state
        lies in memory alone, which is given up then.

    A later call takes the place of an earlier one whose start has not saved anything yet. A process that trains the
    task now is not disturbed. Raises NoSuchAddress, UsageError, CheckpointDamaged or StoreError; then nothing has
    changed."""
    clock = clock or SystemClock()
    branch = planned(root, task, to=to, skip_batches=skip_batches, lr_scale=lr_scale, why=why, force=force, clock=clock)
    store = LocalStore(PosixDisk(), f"{root_folder(root)}/{branch.home}")
    plans.write(store, new_id(clock.now()), branch.plan, branch.others)
    _tell_the_catalog(root_folder(root), branch.home, store)
    return branch


def planned(
    root: str | os.PathLike[str],
    task: str,
    *,
    to: str | int,
    skip_batches: range | Sequence[range] = (),
    lr_scale: float = 1.0,
    why: str = BY_HAND,
    force: bool = False,
    clock: Clock,
) -> Branch:
    """What `rollback` would do. Nothing is written."""
    if not (type(lr_scale) in (int, float) and 0 < lr_scale < math.inf):
        raise UsageError(f"the learning rates are multiplied by a number above 0, got {lr_scale!r}")
    home, store, entries = _read(root, task)
    target = select(entries, Address(task=task, selector=parse(f"@{to}").selector))
    _require_usable(store, target, force=force)
    if not force:
        _require_nothing_newer(root, task, store, entries)
    stretches = _checked(skip_batches, after=target.manifest.step)
    newest = entries[-1]
    line = states_of(store, entries, newest.manifest.id)
    detours = _course(store, entries, target, line).detours
    for stretch in reversed(stretches):  # the last one first, so that the steps of the others keep their numbers
        detours = detours_after(detours, first=stretch.start, last=stretch.stop - 1)
    now, step = timestamp(clock.now()), target.manifest.step
    plan = Plan(
        target=target.manifest.id,
        step=step,
        from_step=newest.manifest.step if newest is not target else None,
        onset=stretches[0].start if stretches else None,
        seen=stretches[-1].stop - 1 if stretches else None,
        skips=tuple(detour for detour in detours if detour.at_step > step),
        lr_scale=float(lr_scale),
        after_seq=max(entry.manifest.seq for entry in entries),
        attempt=_newest_attempt(store),
        by_hand=True,
        why=why,
        time=now,
    )
    suspect = tuple(_spoilt(line, target, stretches[0].start)) if stretches else ()
    others = [
        *_unpinned(entries, now, but=target.manifest.id),
        *(_judged(entry, Health.SUSPECT, SUSPECT, now, onset=stretches[0].start) for entry in suspect),
    ]
    pins = not _is_ours(target)  # a pin of somebody else's may be given up while the plan waits
    if pins:
        others.append(_pin(plan.target, now))
    return Branch(
        task=task,
        home=home,
        plan=plan,
        target=target,
        newest=newest,
        pins=pins,
        suspect=suspect,
        others=tuple(others),
    )


def cancel_rollback(root: str | os.PathLike[str], task: str, *, clock: Clock | None = None) -> Plan:
    """Take back the plan that the next start of `task` would do; the plan. What it had pinned or called suspect is as
    it was before. NoSuchAddress if there is none."""
    clock = clock or SystemClock()
    home, store, entries = _read(root, task)
    plan = pending(store, entries)
    if plan is None:
        raise NoSuchAddress(
            f"task {task!r} has no rollback that is still to be done", next_command="mementum tree ROOT"
        )
    now = timestamp(clock.now())
    others = _undone(_came_with(store, plan), entries, now)
    cancelled = Cancelled(attempt=_newest_attempt(store), by_hand=plan.by_hand, time=now)
    plans.write(store, new_id(clock.now()), cancelled, tuple(others))
    _tell_the_catalog(root_folder(root), home, store)
    return plan


def pending(store: Store, entries: Iterable[Entry]) -> Plan | None:
    """The plan that the next start does, as far as checkpoints tell: a snapshot in memory may know that it is done."""
    plan = plans.newest(store)
    exact = ((one.manifest.seq, one.manifest.attempt) for one in entries if _is_exact(one))
    return plan if plan is not None and plans.is_pending(plan, exact) else None


def _read(root: str | os.PathLike[str], task: str) -> tuple[str, LocalStore, list[Entry]]:
    """The task's folder and its checkpoints, oldest first. NoSuchAddress if there is none."""
    folder, disk = root_folder(root), PosixDisk()
    home = tasks.find(LocalStore(disk, str(folder)), task) if folder.is_dir() else None
    if home is None:
        raise NoSuchAddress(f"{folder} has no task {task!r}", next_command="mementum ls ROOT")
    store, catalog = LocalStore(disk, f"{folder}/{home}"), open_sqlite(None)
    try:
        refresh(catalog, home, store)
        # By the name of the folder's task: a checkpoint that was copied here from another task is one of it.
        entries = [replace(one, manifest=replace(one.manifest, task=task)) for one in catalog.entries(home)]
    finally:
        catalog.close()
    if not entries:
        raise NoSuchAddress(f"task {task!r} has no checkpoint to go back to", next_command="mementum ls ROOT")
    return home, store, entries


def _tell_the_catalog(root: Path, home: str, store: LocalStore) -> None:
    """A process that trains the task now looks there for what it must not remove."""
    catalog = open_catalog(root, emit=lambda event: None)
    try:
        refresh(catalog, home, store)
    except MementumError:
        pass  # it is a cache: the next start reads the facts themselves
    finally:
        catalog.close()


def _require_usable(store: LocalStore, target: Entry, *, force: bool) -> None:
    """Whether a start could go on from it. Damage in a block is found by that start only, which then refuses."""
    manifest, kept = target.manifest, "everything: nothing was changed"
    name = f"step {manifest.step} (checkpoint {manifest.id})"
    if not _is_exact(target):
        holds = manifest.granularity.name.lower().replace("_", " ")
        raise UsageError(
            f"{name} holds {holds} only: no training goes on from it",
            next_command="choose a full one: `mementum ls ROOT` shows which are exact",
        )
    damage = [("checkpoint", target.damaged)] if target.damaged is not None else []
    try:
        found = verify(store, target.folder, manifest, deep=False)
        damage += [(one.key, one.what) for one in found]
    except NotReadableHere:  # the training program has classes that its state needs; this process need not
        pass
    if damage:
        raise CheckpointDamaged(manifest.id, damage, kept=kept, next_command="mementum verify ROOT --deep")
    if target.health is not Health.CLEAN and not force:
        told = f": {target.judged_why}" if target.judged_why else ""
        raise UsageError(
            f"{name} is {target.health.value}{told}",
            kept=kept,
            next_command="go back to an older one (--to clean is the newest that is), or insist with --force",
        )


def _require_nothing_newer(
    root: str | os.PathLike[str], task: str, store: LocalStore, entries: Iterable[Entry]
) -> None:
    """Whether all that a dead process has left is on the disk: the next start would give up what is not."""
    newest = max((one.manifest.seq for one in entries if _is_exact(one)), default=0)
    waiting = leftovers(SHM, key_of(root_folder(root), task))
    stamps = [left.stamp for left in waiting if left.stamp is not None and left.stamp.seq > newest]
    for left in waiting:
        left.release()
    for stamp in stamps:
        try:
            told = heads.parse(stamp.head).told
        except MementumError:  # no start comes back from it
            continue
        if told.claim == claim_of(store, told.attempt):
            raise UsageError(
                f"a snapshot of step {stamp.step} is newer than every checkpoint, and lies in memory alone",
                kept="it, and all checkpoints; going back would give it up",
                next_command=f"mementum drain ROOT {quote(task)} carries it to the disk; --force gives it up",
            )


def _checked(skip_batches: range | Sequence[range], *, after: int) -> tuple[range, ...]:
    """The stretches in their order. UsageError if one of them cannot be left out."""
    given = (skip_batches,) if isinstance(skip_batches, range) else tuple(skip_batches)
    if len(given) > RANGES_MAX:
        raise UsageError(f"{len(given)} stretches of batches are to be left out, and {RANGES_MAX} is the limit")
    for one in given:
        if not (isinstance(one, range) and one.step == 1 and 0 <= one.start < one.stop <= facts.STEP_END):
            shown = f"{one.start}:{one.stop}" if isinstance(one, range) else repr(one)
            raise UsageError(
                f"{shown} are no steps whose batches can be left out",
                next_command="give A:B, the first step and the one after the last",
            )
        if one.start <= after:
            raise UsageError(
                f"step {one.start} is not after step {after}, to which the run goes back: its batch is in that state",
                next_command=f"begin with step {after + 1}, or go back to a checkpoint from before step {one.start}",
            )
    ordered = sorted(given, key=lambda one: one.start)
    for one, other in pairwise(ordered):
        if other.start < one.stop:
            raise UsageError(f"the batch of step {other.start} is to be left out twice")
    if sum(len(one) for one in ordered) > GROUPS_MAX:
        raise UsageError(f"the batches of more than {GROUPS_MAX} steps are to be left out")
    return tuple(ordered)


def _course(store: LocalStore, entries: Sequence[Entry], target: Entry, line: Sequence[Entry]) -> Course:
    """What rollbacks have made of the branch by whose steps batches are counted: the one that is left, with a rollback
    that was done and has saved nothing yet; or that of a target which is not on it."""
    if not _stands_in(line, target):
        return _stored_course(store, target) or Course()
    courses = (_stored_course(store, entry) for entry in line if _is_exact(entry))
    course = next((one for one in courses if one is not None), Course())
    plan = pending(store, entries)
    if plan is None or plan.by_hand:
        return course
    return replace(course, detours=in_force(course.detours, plan.skips, step=plan.step))


def _stored_course(store: LocalStore, entry: Entry) -> Course | None:
    """As the checkpoint's context tells; None if it cannot be read. Only this part of it is decoded: the others may
    need the program's classes."""
    try:
        fields = json.loads(bytes(store.get(f"{entry.folder}/{contexts.name(0)}")))
        stored = typed_json.decode(fields.get(COURSE))
        return course_of(stored if isinstance(stored, Mapping) else None)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, MementumError):
        return None


def _spoilt(line: Sequence[Entry], target: Entry, first: int) -> Iterator[Entry]:
    """Checkpoints of the branch that is left, behind the first batch that is left out, and taken for clean so far."""
    if _stands_in(line, target):
        left = takewhile(lambda entry: entry.manifest.id != target.manifest.id, line)
        for entry in reversed(tuple(left)):
            if entry.manifest.step >= first and entry.health is Health.CLEAN:
                yield entry


def _stands_in(line: Iterable[Entry], target: Entry) -> bool:
    """Whether the branch comes from the target, or from a copy of it."""
    return any(entry.manifest.id == target.manifest.id for entry in line)


def _judged(entry: Entry, health: Health, why: str, now: str, onset: int | None = None) -> Fact:
    manifest = entry.manifest
    values = {"health": health.value, "why": why, **({} if onset is None else {"onset": onset})}
    return Fact(kind="health", time=now, checkpoint=manifest.id, step=manifest.step, values=values)


def _unpinned(entries: Iterable[Entry], now: str, *, but: str) -> Iterator[Fact]:
    """Pins of earlier rollbacks by hand are given up: one at a time, or they would fill the disk."""
    for entry in entries:
        if _is_ours(entry) and entry.manifest.id != but:
            yield _unpin(entry.manifest.id, now)


def _is_ours(entry: Entry) -> bool:
    return BY in entry.pinned_by


def _came_with(store: LocalStore, plan: Plan) -> tuple[Fact, ...]:
    """What became durable together with a plan."""
    for stat in tuple(store.list(plans.FOLDER)):
        found = facts.parse(store.get(stat.key))
        if any(plans.plan_of(fact) == plan for fact in found):
            return found
    return ()


def _undone(followed: Iterable[Fact], entries: Iterable[Entry], now: str) -> Iterator[Fact]:
    """The facts by which everything is as it was before those that came with a plan by hand."""
    by_id = {entry.manifest.id: entry for entry in entries}
    for fact in followed:
        entry = by_id.get(fact.checkpoint or "")
        if entry is None:
            continue
        if fact.kind == "health" and entry.judged_why == SUSPECT:
            yield _judged(entry, Health.CLEAN, "the rollback was taken back", now)
        elif fact.kind == "pin" and _is_ours(entry):
            yield _unpin(entry.manifest.id, now)
        elif fact.kind == "unpin" and not _is_ours(entry):
            yield _pin(entry.manifest.id, now)


def _pin(id: str, now: str) -> Fact:
    return Fact(kind="pin", time=now, checkpoint=id, values={"why": PINNED, "by": BY})


def _unpin(id: str, now: str) -> Fact:
    return Fact(kind="unpin", time=now, checkpoint=id, values={"by": BY})


def _is_exact(entry: Entry) -> bool:
    return entry.manifest.granularity is Granularity.FULL


def _newest_attempt(store: LocalStore) -> int:
    return max(attempts.numbers(store), default=0)
