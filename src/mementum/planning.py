"""Planning: what the saves of a state will take of memory, time and disk on this machine, told before a run."""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from mementum.clock import Clock
from mementum.errors import CheckpointDamaged, MementumError
from mementum.execute import head
from mementum.execute.leftovers import Stale, stale
from mementum.execute.plan import FROZEN
from mementum.execute.room import Choice, Room, choose, margin
from mementum.execute.write import PIECE
from mementum.format import index
from mementum.format import manifest as manifests
from mementum.records import Manifest, Usage, record
from mementum.recover.verify import INDEX
from mementum.storage.disk import Disk
from mementum.storage.local import TEMP_SUFFIX
from mementum.storage.store import Store

PROBE = 256 << 20  # bytes copied, and bytes written, to measure: caches hold less, and a slow disk needs seconds
PROBE_MIN = 16 << 20  # with fewer the start of a measurement counts more than its speed
PROBE_S_MAX = 10.0  # a disk that needs longer has shown how slow it is
DISK_PART = 4  # a quarter of what is free is written at the most: others may be writing meanwhile
AGAIN = 3  # copies into memory that was touched before; the fastest counts, the others met other work

# What bench/save.py measured beside a training on two slow, busy cores: 5 ms blocked for 600 tensors, and 0.33 s lost
# (above the control) for 1.2 GB that are copied, written past the page cache and given digests. With free cores less.
BLOCKED_S = 0.005
LOST_S_PER_GB = 0.27
GB = 1e9
DAY_S = 86400.0
OPTIMIZERS = {  # numbers that torch's optimizers keep for each parameter, beside a step count for each tensor
    "adamw": 2,
    "adam": 2,
    "nadam": 2,
    "radam": 2,
    "adamax": 2,
    "adagrad": 1,
    "rmsprop": 1,
    "momentum": 1,
    "sgd": 0,
}
WIDTHS = {"fp32": 4, "bf16": 2, "fp16": 2}  # bytes of a number; torch keeps moments in the type of their parameter


@record
class State:
    """Bytes of a whole state. What moves is copied and written by every save; what is frozen is written once."""

    moving: int
    frozen: int = 0
    source: str
    measured: bool = False  # whether a checkpoint says it, and not a person


@record
class Copying:
    """Bytes a second into memory: the first time that it is touched, and ever after."""

    first: float
    again: float


@record
class Writing:
    """Bytes a second of a new file that is durable at the end, and how much was written to find out."""

    rate: float
    size: int


@record
class Unmeasured:
    """Why something was not measured."""

    why: str


@record
class Behind:
    """A slot that a dead process has left. `task`, `step` and `id` are None, and `why` is not, where it holds no whole
    snapshot."""

    path: str
    key: str
    size: int
    task: str | None = None
    step: int | None = None
    id: str | None = None
    why: str | None = None


@record
class Plan:
    """What was found, chosen and measured. `folder` is where the disk was looked at, and `disk` is how full it was."""

    state: State
    room: Room
    choice: Choice
    behind: tuple[Behind, ...]
    folder: str
    disk: Usage | None
    copying: Copying | Unmeasured
    writing: Writing | Unmeasured


@record
class Costs:
    """What follows from a plan; None is what cannot be known without a measurement or an interval.

    `blocked_s`: the loop stands still. `lost_s`: its steps are slower beside a save. `first_s`: what the first use of
    a slot takes longer. `durable_s`: from the beginning of a save until it is on the disk. `least_s`: at shorter
    intervals the disk falls behind. `share`: of the training's time."""

    copy_s: float | None
    first_s: float | None
    durable_s: float | None
    least_s: float | None
    blocked_s: float | None
    lost_s: float
    first_bytes: int
    bytes: int
    bytes_per_day: float | None
    share: float | None


def state_of_parameters(count: int, *, optimizer: str, dtype: str, frozen: int) -> State:
    """Of so many trained parameters: themselves, and what the optimizer keeps for each."""
    numbers = 1 + OPTIMIZERS[optimizer]
    each = WIDTHS[dtype] * numbers
    source = f"{count:,} parameters of {WIDTHS[dtype]} bytes, {numbers - 1} numbers more for each by {optimizer}"
    return State(moving=count * each, frozen=frozen, source=source)


def state_in(store: Store, folder: str, manifest: Manifest) -> State:
    """What a checkpoint holds, before any compression."""
    sizes = {False: 0, True: 0}
    for file in manifest.files:
        if INDEX.fullmatch(file.name):
            data = store.get(f"{folder}/{file.name}")
            if manifests.digest(data) != file.digest:
                raise CheckpointDamaged(manifest.id, [(f"{folder}/{file.name}", "it does not match its digest")])
            for each in index.parse(data, file.name).files:
                sizes[each.name.endswith(FROZEN)] += sum(block.raw_size for block in each.blocks)
    source = f"checkpoint {manifest.id} of step {manifest.step}"
    return State(moving=sizes[False], frozen=sizes[True], source=source, measured=True)


def make(state: State, root: Path, *, slots: int, measure: bool, room: Room, disk: Disk, clock: Clock) -> Plan:
    """Look, choose and measure. The root need not be there: then the folder counts in which it will be made."""
    folder = deepest(root)
    choice = choose(room, state.moving, wanted=slots)
    skipped = Unmeasured(why="it was not asked for")
    return Plan(
        state=state,
        room=room,
        choice=choice,
        behind=tuple(_behind(room.shm_folder)),
        folder=folder,
        disk=_usage(folder, disk),
        copying=measure_copy(room, choice.kind, clock) if measure else skipped,
        writing=measure_disk(folder, disk, clock) if measure else skipped,
    )


def costs(plan: Plan, *, interval_s: float | None, step_s: float | None) -> Costs:
    """What saves of this plan cost, one each `interval_s`, beside steps of `step_s`."""
    moving = plan.state.moving
    slots = plan.choice.kind != "none"
    copying = plan.copying if slots and isinstance(plan.copying, Copying) else None
    copy_s = moving / copying.again if copying is not None else None
    write_s = moving / plan.writing.rate if isinstance(plan.writing, Writing) else None
    durable_s = write_s
    if slots:
        durable_s = write_s + copy_s if write_s is not None and copy_s is not None else None
    blocked_s = write_s  # without slots it is written from the live tensors, and the loop waits
    if slots:  # a step that comes before the copy has ended waits for it
        blocked_s = BLOCKED_S + (max(0.0, copy_s - step_s) if copy_s is not None and step_s is not None else 0.0)
    lost_s = LOST_S_PER_GB * moving / GB if slots else 0.0
    return Costs(
        copy_s=copy_s,
        first_s=moving / copying.first - moving / copying.again if copying is not None else None,
        durable_s=durable_s,
        least_s=write_s if write_s is None or copy_s is None else max(write_s, copy_s),
        blocked_s=blocked_s,
        lost_s=lost_s,
        first_bytes=moving + plan.state.frozen,
        bytes=moving,
        bytes_per_day=moving * DAY_S / interval_s if interval_s is not None else None,
        share=(blocked_s + lost_s) / interval_s if interval_s is not None and blocked_s is not None else None,
    )


def deepest(root: Path) -> str:
    """The root, or the deepest folder above it that is there."""
    return str(next(folder for folder in (root, *root.parents) if folder.is_dir()))


def measure_copy(room: Room, kind: Literal["shm", "memory", "none"], clock: Clock) -> Copying | Unmeasured:
    """Copy into memory of the kind that slots are made of, by one thread, as a save does."""
    import numpy as np

    if kind == "none":
        return Unmeasured(why="there are no slots to copy into")
    headroom = room.headroom
    size = PROBE if headroom is None else min(PROBE, (headroom - margin(headroom)) // 2)  # it is copied from somewhere
    if headroom is None or size < PROBE_MIN:
        return Unmeasured(why=f"it takes {2 * PROBE_MIN >> 20} MiB of memory, and so much is not known to be free")
    flags = mmap.MAP_ANONYMOUS | (mmap.MAP_SHARED if kind == "shm" else mmap.MAP_PRIVATE)
    try:
        source = np.ones(size, np.uint8)
        target = np.frombuffer(mmap.mmap(-1, size, flags=flags), np.uint8)
    except (OSError, MemoryError):
        return Unmeasured(why=f"{size >> 20} MiB of memory cannot be had twice")

    def copied_s() -> float:
        began_s = clock.monotonic()
        np.copyto(target, source)
        return max(clock.monotonic() - began_s, 1e-9)  # a clock that stands still makes no rate

    first_s = copied_s()
    return Copying(first=size / first_s, again=size / min(first_s, *(copied_s() for _ in range(AGAIN))))


def measure_disk(folder: str, disk: Disk, clock: Clock) -> Writing | Unmeasured:
    """Write a new file into the folder, as a save does. It has no name while it is written, so that nothing of it stays
    however this process ends."""
    usage = _usage(folder, disk)
    free = None if usage is None else usage.free
    if free is None or free < DISK_PART * PROBE:
        return Unmeasured(why=f"it takes {DISK_PART * PROBE >> 20} MiB that are free in {folder}")
    path = f"{folder.rstrip('/')}/.mementum-plan-{secrets.token_hex(8)}{TEMP_SUFFIX}"
    try:
        return _write(path, disk, clock)
    except OSError as error:
        return Unmeasured(why=f"{folder}: {error.strerror or error}")
    finally:
        with contextlib.suppress(OSError):
            disk.unlink(path)  # it is still there if we were stopped right after it was made


def _write(path: str, disk: Disk, clock: Clock) -> Writing:
    with contextlib.closing(mmap.mmap(-1, PIECE)) as piece:  # a mapping begins at a page, as slots do
        piece.write(os.urandom(PIECE))  # zeros may be stored as none
        with disk.create(path) as file:
            disk.unlink(path)
            written, began_s = 0, clock.monotonic()
            while written < PROBE and clock.monotonic() - began_s < PROBE_S_MAX:
                with memoryview(piece) as view:
                    file.write(view)
                written += PIECE
            file.fsync()
            return Writing(rate=written / max(clock.monotonic() - began_s, 1e-9), size=written)


def _usage(folder: str, disk: Disk) -> Usage | None:
    try:
        return disk.usage(folder)
    except OSError:
        return None


def _behind(folder: str) -> Iterator[Behind]:
    for one in stale(folder):
        yield _told(one)


def _told(one: Stale) -> Behind:
    """What a slot says of itself. Its head is proved, yet may be of another version of ours."""
    if isinstance(one.found, str):
        return Behind(path=one.path, key=one.key, size=one.size, why=one.found)
    try:
        told = head.parse(one.found.head).told
    except MementumError as error:
        return Behind(path=one.path, key=one.key, size=one.size, why=error.message)
    return Behind(path=one.path, key=one.key, size=one.size, task=told.task, step=told.step, id=told.id)
