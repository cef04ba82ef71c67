"""The limits to this process's memory, read from the files in which the kernel tells them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

from mementum.records import record

UNLIMITED = 1 << 60  # cgroup v1 says "no limit" by a number near 2**63; no machine has that much
DIGITS_MAX = 20  # of a 64-bit number; Python refuses to read some thousands of them
COUNTED = (("Max address space", "VmSize"), ("Max data size", "VmData"))  # limits of a process, and what counts there

Read = Callable[[str, list[str]], str]  # a path to its text; "" and a note where it cannot be read


@record
class Limit:
    """One limit, and what is used of it, in bytes."""

    name: str
    size: int
    used: int


@record
class Place:
    """Where a control group tells one of its limits: paths of files.

    `idle` and `active` are the lines of `stat` that count cached pages of files, which the kernel takes back before it
    kills: those that were read once, and those that were read again."""

    limit: str
    used: str
    stat: str
    idle: str
    active: str


def text(path: str, notes: list[str]) -> str:
    """What a file says; what cannot be read says nothing, and is noted."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError as error:
        notes.append(f"{path}: {error.strerror}")
        return ""


def places(proc: str, cgroup: str, notes: list[str], read: Read = text) -> Iterator[Place]:
    """Every limit between our own control groups, of both versions, and their root: each holds for all below it."""
    for line in read(f"{proc}/self/cgroup", notes).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            for folder in _groups(cgroup, path):
                for name in ("memory.max", "memory.high"):
                    yield from _place(folder, name, "memory.current", "")
        if "memory" in controllers.split(","):
            for folder in _groups(f"{cgroup}/memory", path):
                yield from _place(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_")


def _groups(mount: str, path: str) -> Iterator[str]:
    """Our group's folder, and those above it. A container that sees the host's path has its own group at the root of
    the mount, so that the front of the path is missing there."""
    parts = [part for part in path.split("/") if part]
    while parts and not os.path.isdir("/".join((mount, *parts))):
        parts = parts[1:]
    for length in range(len(parts), -1, -1):
        yield "/".join((mount, *parts[:length]))


def _place(folder: str, limit: str, used: str, prefix: str) -> Iterator[Place]:
    if os.path.exists(f"{folder}/{limit}"):  # the root has no limit, and says so by having no file
        idle, active = f"{prefix}inactive_file", f"{prefix}active_file"
        paths = (f"{folder}/{limit}", f"{folder}/{used}", f"{folder}/memory.stat")
        yield Place(limit=paths[0], used=paths[1], stat=paths[2], idle=idle, active=active)


def group_limit(place: Place, taken_back: Sequence[str], notes: list[str], read: Read = text) -> Limit | None:
    """The limit there, if one is set. `taken_back`: the lines of `stat` that do not count as used."""
    said = read(place.limit, notes).strip()
    size = None if said == "max" else number(said, place.limit, notes)
    if size is None or size >= UNLIMITED:
        return None
    used = number(read(place.used, notes).strip(), place.used, notes)
    if used is None:
        return None
    cached = sum(fields(place.stat, taken_back, notes, read).values())
    return Limit(name=place.limit, size=size, used=max(0, used - cached))


def process_limit(title: str, counted: str, proc: str, notes: list[str], read: Read = text) -> Limit | None:
    """A limit that the process itself was started with, if one is set."""
    lines = read(f"{proc}/self/limits", notes).splitlines()
    words = next((line[len(title) :].split() for line in lines if line.startswith(title)), [])
    if not words or words[0] == "unlimited":
        return None
    size = number(words[0], title, notes)
    used = fields(f"{proc}/self/status", (counted,), notes, read).get(counted)
    if size is None or used is None:
        return None
    return Limit(name=f"the process's limit {title!r}", size=size, used=used)


def host_limit(proc: str, notes: list[str], read: Read = text) -> Limit | None:
    """All memory of the machine, of which what the kernel calls available is not used."""
    names = ("MemTotal", "MemAvailable")
    found = fields(f"{proc}/meminfo", names, notes, read)
    if len(found) < len(names):
        return None
    total, available = (found[name] for name in names)
    return Limit(name="the machine's memory", size=total, used=max(0, total - available))


def field(path: str, name: str, notes: list[str], read: Read = text) -> int | None:
    """The number behind one name in a file of lines."""
    return fields(path, (name,), notes, read).get(name)


def fields(path: str, names: Sequence[str], notes: list[str], read: Read = text) -> dict[str, int]:
    """The numbers behind names in a file of lines: in bytes, whether it says kB or nothing. What is missing, or is no
    number, is left out and noted."""
    found: dict[str, int] = {}
    missing = set(names)
    for line in read(path, notes).splitlines():
        if not missing:
            break
        words = line.replace(":", " ").split()
        if len(words) >= 2 and words[0] in missing:
            missing.discard(words[0])
            value = number(words[1], f"{path} {words[0]}", notes)
            if value is not None:
                found[words[0]] = value * 1024 if words[2:] == ["kB"] else value
    notes.extend(f"{path} has no {name}" for name in names if name in missing)
    return found


def number(said: str, what: str, notes: list[str]) -> int | None:
    """A whole number as the kernel writes it."""
    if said.isascii() and said.isdigit() and len(said) <= DIGITS_MAX:
        return int(said)
    notes.append(f"{what} is no number: {said[:40]!r}")
    return None
