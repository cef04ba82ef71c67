"""The ram tier: snapshots in shared memory that outlived their process, found, loaded, and placed on the disk."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from blake3 import blake3

from mementum.catalog import plans, tasks
from mementum.catalog.judged import judged
from mementum.catalog.plans import Plan
from mementum.clock import Clock
from mementum.decide.lineage import lineage
from mementum.errors import KeyMissing, MementumError, UsageError
from mementum.events import Emit, PassedOver
from mementum.execute import head as heads
from mementum.execute.attempts import key_of as claim_key
from mementum.execute.finite import first_bad, must_by_context
from mementum.execute.head import Headed
from mementum.execute.identity import identify, lives, one_kernel
from mementum.execute.leftovers import Left, leftovers
from mementum.execute.liveness import who_is
from mementum.execute.room import SHM
from mementum.execute.slots import Slot
from mementum.execute.snapshot import Image, Snapshot
from mementum.format import context as contexts
from mementum.frozen import Durable, located, read_still
from mementum.opening import root_folder
from mementum.records import (
    NON_FINITE,
    DataFile,
    Entry,
    Granularity,
    Health,
    Index,
    Manifest,
    StoredFile,
    record,
)
from mementum.recover.choose import HEALTH_ORDER, healthier, newest_exact
from mementum.recover.load import Loaded, load_raw
from mementum.soundness import meant_before
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore
from mementum.storage.store import Store

FOLDER = SHM
KEY_LENGTH = 16  # hex digits: two tasks of one user fall together once in 10^19


@record
class Salvaged:
    """A whole snapshot of a dead process, newer than every checkpoint, or (`durable`) the newest of them."""

    left: Left
    headed: Headed
    loaded: Loaded
    durable: bool


def key_of(root: Path, task: str) -> str:
    """What the slots of a task in a root are called."""
    return blake3(f"{root}\0{task}".encode()).hexdigest()[:KEY_LENGTH]


def salvage(
    root: Path,
    task: str,
    *,
    store: Store,
    entries: Sequence[Entry],
    clock: Clock,
    emit: Emit,
    load: bool = True,
    spare: list[Left] | None = None,
) -> Salvaged | None:
    """The healthiest whole snapshot in memory, of equal ones the newest, if no checkpoint as healthy as it is newer and
    it is of no branch that a later attempt has left behind. Torn and older ones are given back. Its slot stays ours
    until it is removed or released.

    With `load`, one that is not clean is given back too where a checkpoint is healthier: what was suspect when its
    process died, or holds what is not finite, is come back from only if there is nothing better. Without, its tensors
    are not loaded, and one that is a checkpoint already is given back. What is to be given back is added to `spare`,
    where there is one: that takes 0.2 s a gigabyte."""
    attempt = max((entry.manifest.attempt for entry in entries), default=0)
    waiting = list(leftovers(FOLDER, key_of(root, task), is_dead=partial(_is_dead, store), clock=clock))
    known = {**_doubted(waiting), **judged(store)} if waiting else {}
    found: Salvaged | None = None
    while waiting:
        left = max(waiting, key=lambda one: _worth(one, known))
        waiting.remove(left)
        stamp = left.stamp
        if stamp is not None and stamp.attempt >= attempt:
            health, why = known.get(stamp.id, (Health.CLEAN, ""))
            rival, better = newest_exact(entries, health), healthier(entries, health) if load else None
            durable = rival is not None and rival.manifest.id == stamp.id
            newer = rival is None or stamp.seq > rival.manifest.seq
            if found is None and better is None and (newer or (durable and load)):
                try:
                    headed = _head_of(left, task, store, entries)
                    bad = None if durable else _not_finite(left, headed, store)
                    if bad is not None and health is not Health.DIVERGED:
                        known[stamp.id] = (Health.DIVERGED, f"{bad} is not finite")
                        waiting.append(left)
                    else:
                        found = _read(left, headed, store, health, bad, load=load, durable=durable)
                except MementumError as error:  # it may be another program's to read, or a later version's: it stays
                    emit(PassedOver(id=stamp.id, what=f"{left.path}: {error.message}"))
                    left.release()
                continue
            instead = None if better is None else better.manifest
            if found is not None:
                instead = found.loaded.manifest
            if instead is not None and newer and instead.seq < stamp.seq:
                what = (
                    f"it is {health.value} ({why}); the newest that is {instead.health.value}, of step {instead.step}"
                )
                emit(PassedOver(id=stamp.id, what=f"{left.path}: {what}, goes before it"))
        if spare is None:
            left.remove()
        else:
            spare.append(left)
    return found


def still_wanted(
    lefts: Sequence[Left], back: Manifest, *, task: str, store: Store, entries: Sequence[Entry]
) -> tuple[Left, ...]:
    """Of the snapshots in memory those, newest first, that are older states of the branch which the run is on, come
    back to `back`, and that no disk has. Where a process died in a trouble that nobody had seen yet, the next one sees
    it, and the state from before it is among these. What is in doubt already, or not ours to read, is not."""
    whole = [left for left in lefts if left.stamp is not None]
    if not whole:
        return ()
    known = {**_doubted(whole), **judged(store)}
    on_disk = {entry.manifest.id for entry in entries if entry.damaged is None}
    newest = back.id if back.id in on_disk else back.parent
    line = [back, *(entry.manifest for entry in lineage(entries, newest))] if newest is not None else [back]
    left_behind = [plan for plan in plans.plans(store) if isinstance(plan, Plan)]
    wanted: list[tuple[tuple[int, int, str], Left]] = []
    for left in whole:
        stamp = left.stamp
        assert stamp is not None
        on_branch = any(
            one.attempt == stamp.attempt and one.seq > stamp.seq and one.step > stamp.step for one in line
        ) and not any(stamp.seq <= plan.after_seq and stamp.step > plan.step for plan in left_behind)
        doubted = stamp.id in known and known[stamp.id][0] is not Health.CLEAN
        if on_branch and not doubted and stamp.id not in on_disk:
            try:
                _head_of(left, task, store, entries)
            except MementumError:  # whoever tried to come back from it has said so
                continue
            wanted.append((stamp.order, left))
    return tuple(left for _, left in sorted(wanted, key=lambda one: one[0], reverse=True))


def _is_dead(store: Store, attempt: int) -> bool:
    """Whether its process ran on this machine, and is not there any more."""
    who = who_is(store, attempt)
    return who is not None and one_kernel(identify(os.environ, lease_s=None), who) and not lives(who)


def _doubted(waiting: Sequence[Left]) -> dict[str, tuple[Health, str]]:
    """What slots say of each other: a snapshot that was sealed in a trouble knows since when nothing is trusted, and
    its process may have died before a journal did."""
    known: dict[str, tuple[Health, str]] = {}
    for left in waiting:
        try:
            doubt = None if left.stamp is None else heads.parse(left.stamp.head).told.doubt
        except MementumError:  # whoever tries to come back from it says so
            continue
        if left.stamp is None or doubt is None:
            continue
        for one in (one.stamp for one in waiting if one.stamp is not None):
            before = one.attempt == left.stamp.attempt and one.seq <= left.stamp.seq  # a newer one says it of itself
            if before and one.step >= doubt.onset:
                known[one.id] = (doubt.health, f"from step {doubt.onset} on: {doubt.why}")
    return known


def _worth(left: Left, known: Mapping[str, tuple[Health, str]]) -> tuple[int, tuple[int, int, str]]:
    """Sorts what is tried first last: healthy before newer, and what holds no whole snapshot behind all that do."""
    if left.stamp is None:
        return (-len(HEALTH_ORDER), (0, 0, ""))
    health = known[left.stamp.id][0] if left.stamp.id in known else Health.CLEAN
    return (-HEALTH_ORDER.index(health), left.stamp.order)


def _head_of(left: Left, task: str, store: Store, entries: Sequence[Entry]) -> Headed:
    assert left.stamp is not None
    headed = heads.parse(left.stamp.head)
    told = headed.told
    if (told.task, told.id, told.seq) != (task, left.stamp.id, left.stamp.seq):
        raise UsageError(f"it is a snapshot of task {told.task!r}")
    if told.claim != claim_of(store, told.attempt):
        why = f"attempt {told.attempt} of it is none of this folder's: another folder stood here"
        raise UsageError(f"{why}; `rm` gives its memory back")
    return replace(headed, stills={name: located(still, store, entries) for name, still in headed.stills.items()})


def _not_finite(left: Left, headed: Headed, store: Store) -> str | None:
    """The first tensor that has to be finite and is not, read where it lies. The context is taken as bare JSON: its
    classes may be those of the training's program. Frozen tensors were looked at when they were written."""
    try:
        must = must_by_context(json.loads(headed.context)["components"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None  # a context of another form: whoever reads it says so
    return first_bad(headed.layouts, _streams(left, headed), must, meant=meant_before(store))


def _read(
    left: Left, headed: Headed, store: Store, health: Health, bad: str | None, *, load: bool, durable: bool
) -> Salvaged:
    streams = _streams(left, headed)
    manifest = describe(headed, (), health, bad)
    if not load:  # nor is the context read
        bare = Loaded(manifest=manifest, context={}, tensors={})
        return Salvaged(left=left, headed=headed, loaded=bare, durable=durable)
    context = contexts.parse(headed.context, "context")
    streams |= {name: read_still(still, store) for name, still in headed.stills.items()}
    files = tuple(DataFile(name=one.name, size=one.raw_size, blocks=()) for one in headed.layouts)
    tensors = tuple(tensor for one in headed.layouts for tensor in one.tensors)
    loaded = load_raw(manifest, Index(rank=0, files=files, tensors=tensors), context, streams)
    if not isinstance(loaded, Loaded):
        raise UsageError(f"{loaded[0].key}: {loaded[0].what}")
    return Salvaged(left=left, headed=headed, loaded=loaded, durable=durable)


def claim_of(store: Store, attempt: int) -> str:
    """What tells an attempt from one of the same number in another folder; empty if it left no claim."""
    try:
        return blake3(bytes(store.get(claim_key(attempt)))).hexdigest()
    except KeyMissing:
        return ""


def _streams(left: Left | Slot, headed: Headed) -> dict[str, memoryview]:
    moving = [layout for layout in headed.layouts if not layout.frozen]
    if [layout.raw_size for layout in moving] != [array.size for array in left.arrays]:
        raise UsageError("its files are not those of its plan")
    return {layout.name: array.data for layout, array in zip(moving, left.arrays, strict=True)}


def describe(
    headed: Headed, files: Sequence[StoredFile], health: Health = Health.CLEAN, bad: str | None = None
) -> Manifest:
    """The manifest of a snapshot, by its own head. `bad`: the tensor in it that should be finite and is not."""
    told = headed.told
    return Manifest(
        id=told.id,
        seq=told.seq,
        task=told.task,
        attempt=told.attempt,
        parent=told.parent,
        step=told.step,
        epoch=told.epoch,
        time=told.time,
        reason=told.save.reason,
        granularity=Granularity(told.save.granularity),
        health=health if bad is None else Health.DIVERGED,
        files=tuple(files),
        decision={**told.save.numbers, "cause": told.save.cause, **({} if bad is None else {NON_FINITE: bad})},
        metrics=told.metrics,
        debug_info=told.debug_info,
        exactness=told.exactness,
        versions=told.versions,
        code=told.code,
        user=told.user,
    )


def described(salvaged: Salvaged, files: Sequence[StoredFile]) -> Manifest:
    """The manifest of a snapshot that was salvaged, which says what is known of it."""
    return replace(salvaged.loaded.manifest, files=tuple(files))


def snapshot_of(salvaged: Salvaged, store: Store, *, release: Callable[[], None], began_s: float) -> Snapshot:
    """The snapshot again, to be written like one of a living process."""
    return snapshot_in(salvaged.left, salvaged.headed, store, release=release, began_s=began_s)


def snapshot_in(
    slot: Left | Slot, headed: Headed, store: Store, *, release: Callable[[], None], began_s: float
) -> Snapshot:
    """The snapshot that a slot holds, to be written once more. `began_s`: by the clock, from when on that is wanted."""
    told = headed.told
    streams: Mapping[str, Any] = _streams(slot, headed)
    images = tuple(
        Image(layout=layout, raw=Durable(headed.stills[layout.name], store), steady=True)
        if layout.frozen
        else Image(layout=layout, raw=streams[layout.name])
        for layout in headed.layouts
    )
    return Snapshot(
        id=told.id,
        seq=told.seq,
        step=told.step,
        epoch=told.epoch,
        time=told.time,
        save=told.save,
        images=images,
        context=lambda: headed.context,
        debug_info=told.debug_info,
        metrics=told.metrics,
        exactness=told.exactness,
        blocked_s=0.0,
        release=release,
        began_s=began_s,
    )


def left_of(root: Path, task: str) -> tuple[str, ...]:
    """Paths of the slots that dead processes of a task have left."""
    found = leftovers(FOLDER, key_of(root, task))
    for left in found:
        left.release()
    return tuple(left.path for left in found)


def tasks_with_leftovers(root: str | Path) -> tuple[str, ...]:
    """Tasks of a root of which dead processes have left snapshots in memory."""
    folder = root_folder(root)
    found = [task.task for task in tasks.tasks(LocalStore(PosixDisk(), str(folder)))] if folder.is_dir() else []
    return tuple(task for task in found if left_of(folder, task))
