"""The ram tier: snapshots in shared memory that outlived their process, found, loaded, and placed on the disk."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from mementum.catalog import tasks
from mementum.clock import Clock
from mementum.errors import KeyMissing, MementumError, UsageError
from mementum.events import Emit, Note, PassedOver
from mementum.execute import head as heads
from mementum.execute.attempts import key_of as claim_key
from mementum.execute.claim import require_newest
from mementum.execute.head import Headed, Still
from mementum.execute.leftovers import Left, leftovers
from mementum.execute.room import choose, look, within
from mementum.execute.slots import MemorySlots, Slots
from mementum.execute.snapshot import Image, Snapshot
from mementum.execute.stills import Stills
from mementum.format import context as contexts
from mementum.opening import Opened, open_task, root_folder
from mementum.records import Buffer, DataFile, Entry, Granularity, Health, Index, Manifest, StoredFile, record
from mementum.recover.load import Loaded, load_raw
from mementum.recover.read import read_files
from mementum.saving import save_checkpoint
from mementum.storage.disk import PosixDisk
from mementum.storage.store import Store

FOLDER = "/dev/shm"
PAGE = 4096  # bytes: what the kernel gives at a touch
IN_PROCESS = 2  # slots where none shall outlive the process: one is written while the other is filled
KEY_LENGTH = 16  # hex digits: two tasks of one user fall together once in 10^19


@record
class Salvaged:
    """A whole snapshot of a dead process, newer than every checkpoint, or (`durable`) the newest of them."""

    left: Left
    headed: Headed
    loaded: Loaded
    durable: bool


@record
class Drained:
    """What a drain has done: `placed` is None where there was nothing to carry, and `why` says why. `removed`: slots
    whose memory was given back."""

    task: str
    placed: Manifest | None = None
    folder: str | None = None
    why: str | None = None
    removed: int = 0


def key_of(root: Path, task: str) -> str:
    """What the slots of a task in a root are called."""
    return blake3(f"{root}\0{task}".encode()).hexdigest()[:KEY_LENGTH]


class ChosenSlots:
    """Slots of the kind and number that there is room for, chosen when the first snapshot tells how large it is. All
    together take `memory` bytes at most."""

    def __init__(self, key: str, *, wanted: int, emit: Emit, memory: int | None = None) -> None:
        self._key, self._wanted, self._emit, self._memory = key, wanted, emit, memory
        self._slots: Slots | MemorySlots | None = None
        self._count = 0
        self._chosen = False
        self._lock = threading.Lock()

    def acquire(self, sizes: Sequence[int], *, safe_seq: int | None = None) -> Any:
        with self._lock:
            return self._acquire(sizes, safe_seq)

    def warm(self, sizes: Sequence[int]) -> None:
        """Make all slots now and touch their pages, so that no save has to wait for that. An `acquire` waits."""
        held: list[Any] = []
        with self._lock:
            try:
                while len(held) < max(1, self._count) and (slot := self._acquire(sizes, None)) is not None:
                    held.append(slot)
                    for array in slot.arrays:
                        array[::PAGE] = 0
            finally:
                for slot in held:
                    slot.release()

    def holds(self, seq: int) -> bool:
        """Whether the newest snapshot that the next start would find in memory is the one with this number."""
        with self._lock:
            return isinstance(self._slots, Slots) and self._slots.newest_seq == seq

    def close(self, *, safe_seq: int | None = None) -> None:
        """Give the memory back, but for a whole snapshot that no disk has taken: the next start or a drain finds it."""
        if isinstance(self._slots, Slots):
            keep = safe_seq is not None and self._slots.newest_seq > safe_seq
            if keep:
                text = "the newest snapshot is on no disk and stays in memory: `mementum drain ROOT` carries it there"
                self._emit(Note(text=text))
            self._slots.close(keep=keep)
        elif self._slots is not None:
            self._slots.close()

    def _acquire(self, sizes: Sequence[int], safe_seq: int | None) -> Any:
        if not self._chosen:
            self._chosen = True
            self._choose(sum(sizes))
        return None if self._slots is None else self._slots.acquire(sizes, safe_seq=safe_seq)

    def _choose(self, size: int) -> None:
        room = within(look(shm=FOLDER), self._memory)
        if not self._wanted:
            room = replace(room, shm_usable=False)
        choice = choose(room, size, wanted=self._wanted or IN_PROCESS)
        self._count = choice.slots
        if choice.kind == "shm":
            self._slots = Slots(FOLDER, self._key, count=choice.slots, emit=self._emit)
        elif choice.kind == "memory":
            self._slots = MemorySlots(count=choice.slots, emit=self._emit)


def salvage(
    root: Path,
    task: str,
    *,
    store: Store,
    entries: Sequence[Entry],
    emit: Emit,
    load: bool = True,
    spare: list[Left] | None = None,
) -> Salvaged | None:
    """The newest whole snapshot in memory, if no checkpoint is newer and it is of no branch that a later attempt has
    left behind. Torn and older ones are given back. Its slot stays ours until it is removed or released.

    Without `load` its tensors are not read, and one that is a checkpoint already is given back. What is to be given
    back is added to `spare`, where there is one: that takes 0.2 s a gigabyte."""
    attempt = max((entry.manifest.attempt for entry in entries), default=0)
    exact = [entry.manifest for entry in entries if entry.manifest.granularity is Granularity.FULL]
    seq = max((manifest.seq for manifest in exact), default=0)
    newest = next((manifest.id for manifest in exact if manifest.seq == seq), None)
    found: Salvaged | None = None
    for left in leftovers(FOLDER, key_of(root, task)):
        stamp = left.stamp
        durable = stamp is not None and stamp.id == newest
        wanted = stamp is not None and (stamp.seq > seq or (durable and load)) and stamp.attempt >= attempt
        if found is None and stamp is not None and wanted:
            try:
                found = _read(left, task, store, entries, load=load, durable=durable)
                continue
            except MementumError as error:  # it may be another program's to read, or a later version's: it stays
                emit(PassedOver(id=stamp.id, what=f"{left.path}: {error.message}"))
                left.release()
                continue
        if spare is None:
            left.remove()
        else:
            spare.append(left)
    return found


def _read(left: Left, task: str, store: Store, entries: Sequence[Entry], *, load: bool, durable: bool) -> Salvaged:
    assert left.stamp is not None
    headed = heads.parse(left.stamp.head)
    told = headed.told
    if (told.task, told.id, told.seq) != (task, left.stamp.id, left.stamp.seq):
        raise UsageError(f"it is a snapshot of task {told.task!r}")
    if told.claim != claim_of(store, told.attempt):
        why = f"attempt {told.attempt} of it is none of this folder's: another folder stood here"
        raise UsageError(f"{why}; `rm` gives its memory back")
    stills = {name: _located(still, store, entries) for name, still in headed.stills.items()}
    headed = replace(headed, stills=stills)
    streams = _streams(left, headed)
    manifest = describe(headed, ())
    if not load:  # nor is the context read: its classes may be those of the training's program
        bare = Loaded(manifest=manifest, context={}, tensors={})
        return Salvaged(left=left, headed=headed, loaded=bare, durable=durable)
    context = contexts.parse(headed.context, "context")
    streams |= {name: _read_still(still, store) for name, still in headed.stills.items()}
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


def _streams(left: Left, headed: Headed) -> dict[str, Buffer]:
    moving = [layout for layout in headed.layouts if not layout.frozen]
    if [layout.raw_size for layout in moving] != [array.size for array in left.arrays]:
        raise UsageError("its files are not those of its plan")
    return {layout.name: array.data for layout, array in zip(moving, left.arrays, strict=True)}


def _located(still: Still, store: Store, entries: Sequence[Entry]) -> Still:
    """Where a file of frozen tensors is now: the checkpoint that had it may be removed, and others have it too."""
    folders = dict.fromkeys((still.folder, *(entry.folder for entry in reversed(entries))))
    has_it = (folder for folder in folders if _size(store, f"{folder}/{still.file.name}") == still.file.size)
    return replace(still, folder=next(has_it, still.folder))


def _size(store: Store, key: str) -> int | None:
    return next((stat.size for stat in store.list(key) if stat.key == key), None)


def _read_still(still: Still, store: Store) -> memoryview:
    """A file of frozen tensors, proved."""
    out = np.empty(still.file.size, np.uint8)

    def take(number: int, begin: int, raw: Buffer) -> None:
        out[begin : begin + len(raw)] = np.frombuffer(raw, np.uint8)

    damage = read_files(store, still.folder, [still.file], take)
    if damage:
        raise UsageError(f"its frozen tensors cannot be read: {damage[0].key}: {damage[0].what}")
    return out.data


def describe(headed: Headed, files: Sequence[StoredFile]) -> Manifest:
    """The manifest of a snapshot, by its own head."""
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
        health=Health.CLEAN,
        files=tuple(files),
        decision={**told.save.numbers, "cause": told.save.cause},
        metrics=told.metrics,
        debug_info=told.debug_info,
        exactness=told.exactness,
        versions=told.versions,
        code=told.code,
        user=told.user,
    )


class Durable:
    """A file of frozen tensors as a raw stream: what `Stills` asks of one, told by the file itself."""

    names: tuple[tuple[str, str], ...] = ()

    def __init__(self, still: Still, store: Store) -> None:
        self._still, self._store = still, store

    def __getitem__(self, piece: slice, /) -> memoryview:
        start, stop, _ = piece.indices(self._still.file.size)
        return self._store.get(f"{self._still.folder}/{self._still.file.name}", start, stop - start)

    def digests(self) -> tuple[str, ...]:
        return tuple(block.digest for block in self._still.file.blocks)

    def changed(self) -> str | None:
        return None


def snapshot_of(salvaged: Salvaged, store: Store, *, release: Callable[[], None]) -> Snapshot:
    """The snapshot again, to be written like one of a living process."""
    headed, told = salvaged.headed, salvaged.headed.told
    streams: Mapping[str, Any] = _streams(salvaged.left, headed)
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
    )


def drain(root: str | Path, task: str, *, clock: Clock, emit: Emit) -> Drained:
    """Carry the newest snapshot of a dead run to the disk. TaskInUse if a living process has the task."""
    folder = root_folder(root)
    opened = open_task(folder, task, about={}, clock=clock, emit=emit)
    try:
        before = len(left_of(folder, task))
        entries = opened.catalog.entries(opened.home)
        salvaged = salvage(folder, task, store=opened.store, entries=entries, emit=emit, load=False)
        if salvaged is None:
            return _nothing_to_carry(folder, task, before)
        try:
            manifest = _place(salvaged, opened, clock, emit)
        except BaseException:
            salvaged.left.release()  # it lies where it lay
            raise
        salvaged.left.remove()
        found = [entry.folder for entry in opened.catalog.entries(opened.home) if entry.manifest.id == manifest.id]
        return Drained(task=task, placed=manifest, folder=f"{opened.home}/{found[0]}", removed=before)
    finally:
        opened.close()


def _nothing_to_carry(folder: Path, task: str, before: int) -> Drained:
    stay = left_of(folder, task)
    why = "all that was in memory is on the disk"
    if stay:
        why = f"what is in memory is not of this task as it stands here, and stays: {', '.join(stay)}"
    elif not before:
        why = "no process has left a snapshot in memory"
    return Drained(task=task, why=why, removed=before - len(stay))


def _place(salvaged: Salvaged, opened: Opened, clock: Clock, emit: Emit) -> Manifest:
    stills = Stills()
    stills.know(salvaged.headed.stills)
    return save_checkpoint(
        snapshot_of(salvaged, opened.store, release=lambda: None),
        home=opened.home,
        store=opened.store,
        catalog=opened.catalog,
        describe=lambda snapshot, files: describe(salvaged.headed, files),
        emit=emit,
        require_newest=lambda: require_newest(opened.store, opened.attempt.number, task=opened.task, clock=clock),
        stills=stills,
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
    found = [task.task for task in tasks.tasks(PosixDisk(), str(folder))] if folder.is_dir() else []
    return tuple(task for task in found if left_of(folder, task))
