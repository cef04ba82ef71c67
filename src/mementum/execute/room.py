"""How much memory there is for slots, by what the machine, its container and its limits say, and how many fit."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Literal

from mementum.cgroup import COUNTED, field, group_limit, places, process_limit, text
from mementum.execute.slot_file import aligned
from mementum.records import record

SHM = "/dev/shm"
WANTED = 3  # one is being filled, one holds the newest snapshot, one is being written
FEWEST = 2  # with one, a copy could only begin by destroying the newest snapshot
EXTRA = 256 << 10  # bytes of a slot beside the state: flag page, alignment of each file, head
SHM_PART = 2  # half of what is free in shared memory is for others: loader workers send their batches through it
MARGIN_PART = 8  # an eighth of what is free stays free: training grows after its start, by a longer batch or a worker
MARGIN_MIN = 64 << 20  # under that, a process is about to die anyway
IN_MEMORY = "tmpfs"  # ramfs has no limit, and does not say whether a file's bytes have memory


@record
class Room:
    """What may be taken, in bytes. None is what could not be learnt; `notes` says of what, and why.

    `limit` is the one of the container's and process's limits that leaves the least, `used` what is used of it."""

    host_available: int | None
    limit: int | None = None
    used: int | None = None
    limited_by: str = ""
    shm_folder: str
    shm_size: int | None = None
    shm_free: int | None = None
    shm_usable: bool = False
    notes: tuple[str, ...] = ()

    @property
    def headroom(self) -> int | None:
        """Bytes that may still be taken."""
        left = None if self.limit is None or self.used is None else self.limit - self.used
        known = [size for size in (self.host_available, left) if size is not None]
        return max(0, min(known)) if known else None


@record
class Choice:
    """Where slots are made, how many and how large; `why` is one sentence for people."""

    kind: Literal["shm", "memory", "none"]
    slots: int
    slot_bytes: int
    why: str


def margin(headroom: int) -> int:
    """Bytes of it that must stay free."""
    return max(MARGIN_MIN, headroom // MARGIN_PART)


def within(room: Room, memory: int | None) -> Room:
    """The same room, of which slots may take no more than so many bytes."""
    if memory is None:
        return room
    # So much headroom that what must stay free of it leaves just that.
    most = max(memory + MARGIN_MIN, -(-memory * MARGIN_PART // (MARGIN_PART - 1)))
    return replace(room, host_available=most if room.host_available is None else min(room.host_available, most))


def choose(room: Room, state_bytes: int, *, wanted: int = WANTED) -> Choice:
    """Three slots, or two, in shared memory; else in private memory; else none."""
    assert wanted >= FEWEST, f"{wanted} slots"
    size = aligned(state_bytes) + EXTRA
    headroom = room.headroom
    free = 0 if headroom is None else headroom - margin(headroom)
    shm = 0 if not room.shm_usable else free
    if room.shm_usable and room.shm_free is not None:
        shm = min(free, room.shm_free // SHM_PART)
    kinds: tuple[tuple[Literal["shm", "memory"], int], ...] = (("shm", shm), ("memory", free))
    for kind, available in kinds:
        for count in range(wanted, FEWEST - 1, -1):
            if count * size <= available:
                return Choice(kind=kind, slots=count, slot_bytes=size, why=_why(room, kind, count, size))
    return Choice(kind="none", slots=0, slot_bytes=size, why=_why(room, "none", FEWEST, size))


def _why(room: Room, kind: str, count: int, size: int) -> str:
    if room.headroom is None:
        return f"no slots, since it is not known how much memory is free ({'; '.join(room.notes)})"
    by = f" (limited by {room.limited_by})" if room.headroom != room.host_available else ""
    memory = f"{_size(room.headroom)} of memory may be taken{by}, {_size(margin(room.headroom))} of it stay free"
    shm = f"{room.shm_folder} cannot be used"
    if room.shm_usable:
        shm = f"{room.shm_folder} has {_size(room.shm_free) if room.shm_free is not None else 'no limit and all'} free"
    match kind:
        case "shm":
            return f"{count} slots of {_size(size)} in shared memory: {shm}; {memory}"
        case "memory":
            return f"{count} slots of {_size(size)} in private memory, which end with the process: {shm}; {memory}"
        case _:
            return f"no slots, since {count} of {_size(size)} do not fit: {memory}"


def _size(size: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size / 1024:.1f} KiB"


def look(*, shm: str = SHM, proc: str = "/proc", cgroup: str = "/sys/fs/cgroup") -> Room:
    """Read what there is now. Whatever is missing or unreadable is left unknown."""
    notes: list[str] = []
    available = field(f"{proc}/meminfo", "MemAvailable", notes)
    groups = [group_limit(place, (place.idle,), notes) for place in places(proc, cgroup, notes)]
    own = [process_limit(title, counted, proc, notes) for title, counted in COUNTED]
    limits = [limit for limit in (*groups, *own) if limit is not None]
    tightest = min(limits, key=lambda limit: limit.size - limit.used, default=None)
    shm_size, shm_free, usable = _shared_memory(shm, proc, notes)
    return Room(
        host_available=available,
        limit=tightest.size if tightest is not None else None,
        used=tightest.used if tightest is not None else None,
        limited_by=tightest.name if tightest is not None else "",
        shm_folder=shm,
        shm_size=shm_size,
        shm_free=shm_free,
        shm_usable=usable,
        notes=tuple(notes),
    )


def _shared_memory(shm: str, proc: str, notes: list[str]) -> tuple[int | None, int | None, bool]:
    try:
        status = os.statvfs(shm)
    except OSError as error:
        notes.append(f"{shm}: {error.strerror}")
        return None, None, False
    kind = _kind_of(os.path.realpath(shm), text(f"{proc}/self/mounts", notes))
    if kind != IN_MEMORY:
        notes.append(f"{shm} is no {IN_MEMORY} but {kind}")
    writable = os.access(shm, os.W_OK | os.X_OK)
    if not writable:
        notes.append(f"{shm} cannot be written to")
    sized = status.f_blocks > 0  # a file system in memory that was mounted without a limit has no size
    size = status.f_blocks * status.f_frsize if sized else None
    free = status.f_bavail * status.f_frsize if sized else None
    return size, free, writable and kind == IN_MEMORY


def _kind_of(folder: str, mounts: str) -> str:
    """The type of the file system that holds the folder: that of the longest mount point, the last one mounted."""
    longest, kind = "", "unknown"
    for line in mounts.splitlines():
        words = line.split()
        if len(words) >= 3:
            point = words[1].rstrip("/")
            if f"{folder}/".startswith(f"{point}/") and len(point) >= len(longest):
                longest, kind = point, words[2]
    return kind
