"""Moving: `mementum place`, which copies a checkpoint to a tier, or from there back into a root."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mementum.catalog import tasks
from mementum.catalog.noted import from_outside
from mementum.catalog.place import is_remote
from mementum.cli.failing import OK, warn
from mementum.cli.reading import address_in, find, look, require_readable
from mementum.cli.text import as_json as rendered
from mementum.cli.text import printable, size
from mementum.clock import Clock, SystemClock, timestamp
from mementum.config.tiers import Tier
from mementum.errors import CheckpointDamaged, StoreError, UsageError
from mementum.events import Event, Failed, Note, PassedOver
from mementum.execute.attempts import key_of, numbers
from mementum.execute.claim import claim, let_go
from mementum.execute.commit import new_id
from mementum.mirroring import FETCH, bring_attempts, bring_facts, mirror
from mementum.placing import Copied, Uncopied
from mementum.placing import place as copy
from mementum.pruning import sweep
from mementum.records import Entry, Fact, record
from mementum.rooting import Root, local_folder, open_root, part_of
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore
from mementum.storage.store import Store
from mementum.storage.tiers import absolute, kind_of


@record
class Moved:
    """A checkpoint, and where it is now."""

    task: str
    entry: Entry
    done: Copied
    tier: str
    url: str
    path: str


def place(
    root: str, address: str | None, *, to: str | None, source: str | None, as_json: bool, clock: Clock | None = None
) -> int:
    """Copy the checkpoint that is meant to the tier `to`, or from the tier `source`; the exit code."""
    if (to is None) is (source is None):
        raise UsageError(
            "say where the copy goes with --to, or where it is from with --from: one of the two",
            next_command="mementum place --help",
        )
    if not (to or source):
        raise UsageError(
            "the place is empty: give a folder, or a url such as s3://bucket/prefix",
            next_command="mementum place --help",
        )
    time = clock or SystemClock()
    moved = _place(root, address, to, time) if to is not None else _fetch(root, address, source or "", time)
    if as_json:
        print(rendered(_fields(moved)))
        return OK
    was = f"{size(moved.done.sent)} sent" if moved.done.sent else "it was there already"
    print(printable(f"{_name(moved.task, moved.entry)} is in {moved.path}: {was}"))
    return OK


def _place(root: str, address: str | None, to: str, clock: Clock) -> Moved:
    folder = local_folder(root)  # its facts say where copies lie
    contents = look(root)
    held = find(contents, address_in(contents, address))
    require_readable(held)
    url = absolute(to)
    target = _other(folder, url)
    home = tasks.find(target.store, held.task) or held.home
    near, far = part_of(contents.root, held.home), part_of(target, home)
    _require_kin(near, far, held.task, target.name, newest=True)
    mirror(near, far)  # first: without the attempts nobody finds the task there
    done = _whole(
        held.task, held.entry, copy(held.entry, source=near, target=far, require_newest=_nobody, pause=_goes_on)
    )
    known = [place.tier for one in contents.held for place in one.entry.places if place.url == target.name]
    tier = known[0] if known else Tier(url=url).called  # as the settings of the run call it
    values: Mapping[str, Any] = {
        "tier": tier,
        "url": target.name,
        "generation": done.manifest.generation,
        "size": done.manifest.size,
        "levels": list(done.manifest.levels),
    }
    if done.sent or not any(place.tier == tier for place in held.entry.places):
        now_s = clock.now()
        fact = Fact(kind="placed", time=timestamp(now_s), checkpoint=held.id, values=values)
        try:
            from_outside(near, new_id(now_s), [fact])
        except StoreError as error:  # a disk that is full, or read-only by now, is what a copy is made for
            warn(f"that it is there is not recorded: {error.message}")
    mirror(near, far)  # who had the task and what is known, so that the copy can be read as a root
    look(root)  # so that the catalog knows of it
    path = f"{target.name}/{home}/{done.folder}"
    return Moved(task=held.task, entry=held.entry, done=done, tier=tier, url=target.name, path=path)


def _fetch(root: str, address: str | None, source: str, clock: Clock) -> Moved:
    """As a start on a new machine does it: the numbers of attempts first, then a claim, so that nobody sweeps away what
    is half here. TaskInUse if a living process trains the task."""
    folder, url = local_folder(root), absolute(source)
    other = _other(folder, url)
    contents = look(url)
    held = find(contents, address_in(contents, address))
    require_readable(held)
    far = part_of(other, held.home)
    root_store = LocalStore(PosixDisk(), str(folder))
    home = tasks.find(root_store, held.task) or held.home
    near = root_store.below(home)
    _require_kin(near, far, held.task, other.name, newest=False)
    above = max(numbers(far), default=0)
    attempt = claim(near, task=held.task, facts=FETCH, clock=clock, emit=_tell, shared=is_remote(folder), above=above)
    try:
        if attempt.lease is not None:
            attempt.lease.start()
        if attempt.sure:
            sweep(near, emit=_tell)
        bring_attempts(far, near, attempt.number)
        bring_facts(far, near, attempt.number)
        done = copy(held.entry, source=far, target=near, require_newest=_nobody, pause=_goes_on)
        whole = _whole(held.task, held.entry, done)
    finally:
        try:
            near.delete(key_of(attempt.number))  # it never was an attempt at a training
        finally:
            let_go(attempt)
    look(str(folder))  # so that the catalog knows of it
    path = f"{folder}/{home}/{whole.folder}"
    return Moved(task=held.task, entry=held.entry, done=whole, tier=Tier(url=url).called, url=other.name, path=path)


def _require_kin(near: Store, far: Store, task: str, place: str, *, newest: bool) -> None:
    """UsageError if the place has the task of another root, which began for itself and only has the same name: each
    attempt's file is its own. `newest`: the last attempt that uses the place must be known here too."""
    ours, theirs = numbers(near), numbers(far)
    shared = [number for number in theirs if number in ours]
    foreign = newest and bool(theirs) and theirs[0] not in ours
    if shared and bytes(near.get(key_of(shared[0]))) != bytes(far.get(key_of(shared[0]))):
        foreign = True
    if foreign or (ours and theirs and not shared):
        raise UsageError(
            f"attempt {theirs[0]} of task {task!r} at {place} is not of this root: another one uses the place, and "
            "nothing was copied",
            next_command="give another place, or one with a prefix of its own; `mementum tree` of both shows attempts",
        )


def _other(folder: Path, url: str) -> Root:
    """The tier, which is no part of the root. A folder that is not there yet is made when something comes there."""
    if kind_of(url) != "folder":
        return open_root(url)
    place = Path(url).resolve()
    if place == folder or folder in place.parents:
        raise UsageError(
            f"{place} lies in the root {folder}, and is lost with it", next_command="give a folder of another disk"
        )
    return Root(name=str(place), store=LocalStore(PosixDisk(), str(place)), folder=place)


def _whole(task: str, entry: Entry, done: Copied | Uncopied) -> Copied:
    if isinstance(done, Copied):
        return done
    if done.damage is not None:
        raise CheckpointDamaged(entry.manifest.id, [(done.damage.key, done.damage.what)])
    raise StoreError(
        entry.folder, f"{_name(task, entry)} was not copied: {done.reason}", kept="the checkpoint, where it is"
    )


def _nobody() -> None:
    """No attempt is made here, so that none can be superseded."""


def _goes_on() -> None:
    """Whoever runs the command waits for it."""


def _tell(event: Event) -> None:
    """What a person should know of it."""
    match event:
        case PassedOver():
            warn(f"warning: {event.id} is passed over: {event.what}")
        case Failed():
            warn(f"warning: {event.what} failed: {event.error} (kept: {event.kept})")
        case Note():
            warn(f"note: {event.text}")


def _name(task: str, entry: Entry) -> str:
    return f"checkpoint {entry.manifest.id} of step {entry.manifest.step} ({task})"


def _fields(moved: Moved) -> dict[str, Any]:
    manifest = moved.done.manifest
    return {
        "task": moved.task,
        "checkpoint": manifest.id,
        "step": manifest.step,
        "tier": moved.tier,
        "url": moved.url,
        "path": moved.path,
        "sent": moved.done.sent,
        "size": manifest.size,
        "levels": list(manifest.levels),
    }
