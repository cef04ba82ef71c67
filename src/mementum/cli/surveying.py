"""Surveying: what stands around the checkpoints of a root, and could keep a start from going well."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from mementum.catalog.place import NAME, catalog_path, file_system, is_remote
from mementum.catalog.sql import SqlCatalog, open_sqlite
from mementum.catalog.tasks import DAY, HOME
from mementum.cli.finding import Finding, Severity
from mementum.cli.onlooking import Onlooker
from mementum.cli.scanning import Scanned, attempt
from mementum.cli.text import counted, moment, size
from mementum.config.tiers import Watermarks
from mementum.decide.filling import needs
from mementum.errors import MementumError, StoreError
from mementum.execute.attempts import key_of, newest_leases, numbers
from mementum.execute.identity import Identity, identify, lives
from mementum.execute.liveness import Alive, Gone, Leased, standing, who_is
from mementum.execute.remove import FOLDER, orphans, outdated
from mementum.storage.disk import PosixDisk
from mementum.storage.local import TEMP_SUFFIX
from mementum.watermarks import marks_of

SHOWN_MAX = 5  # names in one finding; more do not help anybody
ROOM = 2  # checkpoints that must fit beside what is there: one is written before an older one is removed
CATALOG_SIZE_MAX = 1 << 30  # a catalog of a million checkpoints; what is larger is not copied only to be looked at
WAL, JOURNAL = "-wal", "-journal"
CATALOG_FILES = (NAME, f"{NAME}{WAL}", f"{NAME}-shm", f"{NAME}{JOURNAL}")
OURS_IN_A_TASK = ("attempts/", "journal/", "facts/", "vitals/")


def holder(scanned: Scanned) -> Finding:
    """Which start of the task holds it, or held it last. A lock that is free is taken and let go at once."""
    store, me = scanned.store, identify({}, lease_s=None)
    leases, every = newest_leases(store), numbers(store)
    for number in every:
        try:
            found = standing(store, number, me=me, lease=leases.get(number), shared=is_remote(scanned.root))
        except StoreError as error:
            return _perhaps_held(scanned, number, error)
        match found:
            case Alive(elsewhere=True):
                return _elsewhere(scanned, number, "and nobody here can tell whether that host lives")
            case Alive():
                return _held(scanned, number)
            case Leased(lease_s=lease_s):
                return _elsewhere(
                    scanned, number, f"and a start waits up to {2 * lease_s:.0f} s for its lease to lapse"
                )
            case Gone():
                continue
    if not every:
        return _of(scanned, Severity.NOTE, "never-started", "no file says that a start ever took it")
    return _of(scanned, Severity.OK, "free", f"nobody trains it now; the last start was {_who(scanned, every[0])}")


def _held(scanned: Scanned, number: int) -> Finding:
    what = f"it is being trained by {_who(scanned, number)}"
    who = _named_by(scanned, number)
    if who is not None and not _is_alive(who):
        lock = shlex.quote(f"{scanned.root}/{scanned.home}/{key_of(number)}")
        what = f"{what}; that process is gone, and a child of it or a process in another container holds the lock"
        return _of(scanned, Severity.WARNING, "held", what, f"`fuser -v {lock}` shows which")
    stop = f", or stop it (kill {who.pid})" if who is not None and who.pid else ""
    return _of(scanned, Severity.NOTE, "held", f"{what}; a second start is refused", f"wait for it{stop}")


def _elsewhere(scanned: Scanned, number: int, and_what: str) -> Finding:
    what = f"it is held by {_who(scanned, number)}, {and_what}"
    next_command = "wait for it, or stop it there; open_run(takeover=True) if it is surely gone"
    return _of(scanned, Severity.NOTE, "held", what, next_command)


def _perhaps_held(scanned: Scanned, number: int, error: StoreError) -> Finding:
    """Without leave to open the file for writing its lock tells nothing; the process's number tells something."""
    who = _named_by(scanned, number)
    said = "that process is alive" if who is not None and _is_alive(who) else "no such process is alive here"
    what = f"its lock cannot be tried ({error.message}); the last start was {_who(scanned, number)}, and {said}"
    return _of(scanned, Severity.WARNING, "lock-unknown", what, error.next_command)


def _is_alive(who: Identity) -> bool:
    return lives(who) if who.started is not None else who.pid > 0 and psutil.pid_exists(who.pid)


def _named_by(scanned: Scanned, number: int) -> Identity | None:
    """Whom an attempt's file names; None also where this user may not read it."""
    try:
        return who_is(scanned.store, number)
    except StoreError:
        return None


def _who(scanned: Scanned, number: int) -> str:
    who, time = _named_by(scanned, number), attempt(scanned.store, key_of(number)).get("time")
    begun = f"attempt {number}, begun {moment(time)} UTC" if isinstance(time, str) else f"attempt {number}"
    if who is None:
        return f"{begun} by a process that its file does not name"
    return f"{begun} by process {who.pid} on {who.host}"


def leftovers(scanned: Scanned, disk: Onlooker, *, held: bool) -> Iterator[Finding]:
    """What the next start would sweep away: unfinished puts, and parts that no manifest names."""
    parts = (*orphans(scanned.store), *outdated(scanned.store))
    unfinished = sorted(_unfinished(disk, f"{scanned.root}/{scanned.home}"))
    prefix = f"{scanned.root}/{scanned.home}/"
    found = (*parts, *(path.removeprefix(prefix) for path in unfinished))
    if not found:
        return
    folders = sorted({key.partition("/")[0] for key in found})
    what = f"{counted(len(found), 'file')} of saves or removals that did not end, in {_some(folders)}"
    if held:
        yield _of(scanned, Severity.NOTE, "leftovers", f"{what}; a save that is under way looks the same")
    else:
        yield _of(scanned, Severity.NOTE, "leftovers", what, "nothing: the next start of the task removes them")


def _unfinished(disk: Onlooker, folder: str) -> Iterator[str]:
    for name in disk.listdir(folder):
        if name.endswith("/"):
            yield from _unfinished(disk, folder + "/" + name.rstrip("/"))
        elif name.endswith(TEMP_SUFFIX):
            yield f"{folder}/{name}"


def nameless(scanned: Scanned) -> Iterator[Finding]:
    """Two ways in which a task's folder is not found by those who look for the task."""
    if scanned.task is None:
        what = f"{scanned.home} has the form of a task's folder, and no file in it says the task's name"
        next_command = "nothing, if it is not ours; else start its task: a start finds the folder by its name"
        yield _of(scanned, Severity.WARNING, "nameless", what, next_command)


def doubled(every: Sequence[Scanned]) -> Iterator[Finding]:
    """A task with two folders: a start uses that of the older day, and the other's checkpoints are not found."""
    first: dict[str, Scanned] = {}
    for scanned in every:
        name = scanned.home.partition("/")[2]
        if name in first:
            what = f"{scanned.home} is passed over by a start, which uses {first[name].home}"
            next_command = f"merge the folders by hand, or move {scanned.home} to a root of its own"
            yield _of(scanned, Severity.WARNING, "doubled", what, next_command)
        else:
            first[name] = scanned


def foreign(root: Path, every: Sequence[Scanned], disk: Onlooker) -> Iterator[Finding]:
    """What is not ours and stays as it is."""
    days = {name for name in disk.listdir(str(root)) if name.endswith("/") and DAY.fullmatch(name.rstrip("/"))}
    names = [name for name in disk.listdir(str(root)) if name not in days and name not in CATALOG_FILES]
    for day in sorted(days):
        inside = disk.listdir(f"{root}/{day.rstrip('/')}")
        names += [day + name for name in inside if not (name.endswith("/") and HOME.fullmatch(name.rstrip("/")))]
    for scanned in every:
        for name in disk.listdir(f"{root}/{scanned.home}"):
            ours = name in OURS_IN_A_TASK or (name.endswith("/") and FOLDER.fullmatch(name.rstrip("/")))
            if not ours and not name.endswith(TEMP_SUFFIX):
                names.append(f"{scanned.home}/{name}")
    if names:
        what = f"{counted(len(names), 'name')} in the root that mementum never makes, and leaves alone: {_some(names)}"
        yield Finding(severity=Severity.NOTE, kind="foreign", what=what)


def permissions(root: Path, every: Sequence[Scanned], disk: Onlooker) -> Iterator[Finding]:
    """Where this user may not write, or not even look. Nothing is written to find out."""
    folders = [str(root)]
    for scanned in every:
        inside = disk.listdir(f"{root}/{scanned.home}")
        folders.append(f"{root}/{scanned.home}")
        folders += [f"{root}/{scanned.home}/{name.rstrip('/')}" for name in inside if name in OURS_IN_A_TASK]
    closed = [folder for folder in folders if not os.access(folder, os.W_OK | os.X_OK)]
    if closed:
        what = (
            f"this user may not write in {counted(len(closed), 'folder')}, so that no start can save: {_some(closed)}"
        )
        yield Finding(
            severity=Severity.PROBLEM, kind="permission", what=what, next_command=f"ls -ld {shlex.quote(closed[0])}"
        )


def refused(disk: Onlooker) -> Iterator[Finding]:
    """What could not be seen, by the time that everything was looked at."""
    for path, reason in sorted(disk.refused.items()):
        yield Finding(
            severity=Severity.PROBLEM,
            kind="refused",
            what=f"{path} could not be looked at, and a start may stop there: {reason}",
            next_command=f"ls -ld {shlex.quote(path)}",
        )


def space(root: Path, every: Sequence[Scanned]) -> Iterator[Finding]:
    """Whether the next checkpoints will fit, if they are as large as the newest."""
    manifests = [manifest for scanned in every for manifest in scanned.manifests.values()]
    if not manifests:
        return
    newest = max(manifests, key=lambda manifest: manifest.time)
    try:
        usage = PosixDisk().usage(str(root))
    except OSError:  # the root went away, which the other findings tell
        return
    what = f"{size(usage.free)} are free, and the newest checkpoint has {size(newest.size)}"
    marks, next_command = Watermarks(), f"df -h {shlex.quote(str(root))}"
    wanted = needs(usage, marks_of(marks), coming=newest.size, full=newest.size)
    if usage.free < ROOM * newest.size:
        what = f"{what}: the next save may not fit"
        yield Finding(severity=Severity.WARNING, kind="space", what=what, next_command=next_command)
    elif wanted.save:
        what = f"{what}, and the disk is used to {usage.share:.0%}: where nothing can go, saves wait for an emergency"
        yield Finding(severity=Severity.WARNING, kind="space", what=what, next_command=next_command)
    elif wanted.clean:
        worth = f"a run removes what is worth least until it is used to {marks.clean_to:.0%}"
        what = f"{what}, and the disk is used to {usage.share:.0%}: {worth}"
        yield Finding(severity=Severity.NOTE, kind="space", what=what, next_command=next_command)


def network(root: Path) -> Iterator[Finding]:
    if is_remote(root):
        what = (
            f"the root is on a network file system ({file_system(root)}): the catalog lies in each user's cache "
            "folder, and a start may have to wait until the lease of a start on another host has lapsed"
        )
        yield Finding(severity=Severity.NOTE, kind="network", what=what)


def catalog(root: Path, every: Sequence[Scanned], disk: Onlooker) -> Finding:
    """The state of the catalog, told from a copy: whoever opens a database file may change it."""
    rebuild = f"mementum rebuild {shlex.quote(str(root))}"
    try:
        path = str(catalog_path(root))
        length = disk.size(path)
    except FileNotFoundError:
        what = "there is no catalog yet, or it is out of sight: it is a cache, and the next command makes it"
        return Finding(severity=Severity.NOTE, kind="catalog", what=what)
    except (OSError, RuntimeError) as error:  # the last from a user without a home folder
        what = f"the catalog cannot be used ({error}); every command reads the manifests instead"
        return _no_catalog(what, _instead(error, getattr(error, "filename", None) or str(root / NAME)) or rebuild)
    if length > CATALOG_SIZE_MAX:
        what = f"the catalog has {size(length)}, far more than its checkpoints need"
        return Finding(severity=Severity.WARNING, kind="catalog", what=what, next_command=rebuild)
    with tempfile.TemporaryDirectory() as folder:
        try:
            copy = _copied(path, f"{folder}/{NAME}", disk)
            opened = open_sqlite(Path(copy))
            try:
                wrong = opened.damage() or _differences(opened, every)
            finally:
                opened.close()
        except (MementumError, OSError) as error:
            what = error.message if isinstance(error, MementumError) else str(error)
            what = f"the catalog {path} cannot be read: {what.replace(f'{folder}/', '')}"
            return _no_catalog(what, _instead(error, path) or rebuild)
    if wrong is not None:
        return Finding(severity=Severity.NOTE, kind="catalog", what=f"{path}: {wrong}", next_command=rebuild)
    return Finding(severity=Severity.OK, kind="catalog", what="the catalog knows every checkpoint that lies here")


def _instead(error: Exception, path: str) -> str | None:
    """What helps where no rebuild does. What SQLite says, which is then the cause, is of the copy."""
    if isinstance(error, IsADirectoryError):
        return f"mv {shlex.quote(path)} {shlex.quote(path)}.old"
    return error.next_command if isinstance(error, MementumError) and error.__cause__ is None else None


def _no_catalog(what: str, rebuild: str) -> Finding:
    return Finding(severity=Severity.WARNING, kind="catalog", what=what, next_command=rebuild)


def _copied(path: str, copy: str, disk: Onlooker) -> str:
    """The database with what its log still holds; without its shared memory, which is made anew."""
    writable = PosixDisk()
    for suffix in ("", WAL, JOURNAL):
        try:
            data = disk.read(path + suffix)
        except FileNotFoundError:
            continue
        with writable.create(copy + suffix) as file:
            file.write(data)
    return copy


def _differences(opened: SqlCatalog, every: Sequence[Scanned]) -> str | None:
    missing = gone = 0
    for scanned in every:
        known = {(entry.folder, entry.manifest.id) for entry in opened.entries(scanned.home)}
        present = {(folder, manifest.id) for folder, manifest in scanned.manifests.items()}
        missing, gone = missing + len(present - known), gone + len(known - present)
    if not missing and not gone:
        return None
    said = f"it lacks {counted(missing, 'checkpoint')} and has {gone} that are gone"
    return f"{said}; the next command that lists brings it up to date by itself"


def _of(scanned: Scanned, severity: Severity, kind: str, what: str, next_command: str | None = None) -> Finding:
    return Finding(severity=severity, kind=kind, task=scanned.name, what=what, next_command=next_command)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
    return ", ".join(names[:SHOWN_MAX]) + more
