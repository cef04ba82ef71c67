"""How much memory there is for slots, by what the machine, its container and its limits say, and how many fit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import field
from typing import Literal

from mementum.execute.slot_file import aligned
from mementum.records import record

SHM = "/dev/shm"
WANTED = 3  # one is being filled, one holds the newest snapshot, one is being written
FEWEST = 2  # with one, a copy could only begin by destroying the newest snapshot
EXTRA = 256 << 10  # bytes of a slot beside the state: flag page, alignment of each file, head
SHM_PART = 2  # half of what is free in shared memory is for others: loader workers send their batches through it
MARGIN_PART = 8  # an eighth of what is free stays free: training grows after its start, by a longer batch or a worker
MARGIN_MIN = 64 << 20  # under that, a process is about to die anyway
UNLIMITED = 1 << 60  # cgroup v1 says "no limit" by a number near 2**63; no machine has that much
DIGITS_MAX = 20  # of a 64-bit number; Python refuses to read some thousands of them
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
    notes: tuple[str, ...] = field(default=())

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


@record
class _Limit:
    """One limit, and what is used of it."""

    size: int
    used: int
    name: str


def margin(headroom: int) -> int:
    """Bytes of it that must stay free."""
    return max(MARGIN_MIN, headroom // MARGIN_PART)


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
    available = _field(f"{proc}/meminfo", "MemAvailable", notes)
    limits = [*_container_limits(proc, cgroup, notes), *_process_limits(proc, notes)]
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


def _container_limits(proc: str, cgroup: str, notes: list[str]) -> Iterator[_Limit]:
    """Every limit between our own control group and the root: each holds for all that is below it."""
    for line in _text(f"{proc}/self/cgroup", notes).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            for folder in _groups(cgroup, path):
                for name in ("memory.max", "memory.high"):
                    yield from _limit(folder, name, "memory.current", "inactive_file", notes)
        if "memory" in controllers.split(","):
            for folder in _groups(f"{cgroup}/memory", path):
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
                yield from _limit(folder, *names, notes)


def _groups(mount: str, path: str) -> Iterator[str]:
    """Our group's folder, and those above it. A container that sees the host's path has its own group at the root of
    the mount, so that the front of the path is missing there."""
    parts = [part for part in path.split("/") if part]
    while parts and not os.path.isdir("/".join((mount, *parts))):
        parts = parts[1:]
    for length in range(len(parts), -1, -1):
        yield "/".join((mount, *parts[:length]))


def _limit(folder: str, name: str, usage: str, reclaimable: str, notes: list[str]) -> Iterator[_Limit]:
    if not os.path.exists(f"{folder}/{name}"):  # the root has no limit, and says so by having no file
        return
    text = _text(f"{folder}/{name}", notes).strip()
    size = None if text == "max" else _number(text, f"{folder}/{name}", notes)
    if size is None or size >= UNLIMITED:
        return
    used = _number(_text(f"{folder}/{usage}", notes).strip(), f"{folder}/{usage}", notes)
    if used is not None:
        cache = _field(f"{folder}/memory.stat", reclaimable, notes) or 0
        yield _Limit(size=size, used=max(0, used - cache), name=f"{folder}/{name}")


def _process_limits(proc: str, notes: list[str]) -> Iterator[_Limit]:
    text = _text(f"{proc}/self/limits", notes)
    for title, counted in (("Max address space", "VmSize"), ("Max data size", "VmData")):
        words = next((line[len(title) :].split() for line in text.splitlines() if line.startswith(title)), [])
        if not words or words[0] == "unlimited":
            continue
        size = _number(words[0], title, notes)
        used = _field(f"{proc}/self/status", counted, notes)
        if size is not None and used is not None:
            yield _Limit(size=size, used=used, name=f"the process's limit {title!r}")


def _shared_memory(shm: str, proc: str, notes: list[str]) -> tuple[int | None, int | None, bool]:
    try:
        status = os.statvfs(shm)
    except OSError as error:
        notes.append(f"{shm}: {error.strerror}")
        return None, None, False
    kind = _kind_of(os.path.realpath(shm), _text(f"{proc}/self/mounts", notes))
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


def _field(path: str, name: str, notes: list[str]) -> int | None:
    """The number behind a name in a file of lines: in bytes, whether it says kB or nothing."""
    for line in _text(path, notes).splitlines():
        words = line.replace(":", " ").split()
        if len(words) >= 2 and words[0] == name:
            number = _number(words[1], f"{path} {name}", notes)
            return number * 1024 if number is not None and words[2:] == ["kB"] else number
    notes.append(f"{path} has no {name}")
    return None


def _number(text: str, what: str, notes: list[str]) -> int | None:
    if text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX:
        return int(text)
    notes.append(f"{what} is no number: {text[:40]!r}")
    return None


def _text(path: str, notes: list[str]) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError as error:
        notes.append(f"{path}: {error.strerror}")
        return ""
