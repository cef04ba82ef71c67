"""Rebuilding: `mementum rebuild`, which makes the catalog anew from manifests and journals."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from mementum.catalog.place import catalog_path
from mementum.catalog.rebuild import Progress, holding, learn, refresh
from mementum.catalog.sql import SqlCatalog, is_no_database, open_scratch, open_sqlite
from mementum.catalog.tasks import TaskHome, tasks
from mementum.cli.failing import ERROR, INTEGRITY, OK, warn
from mementum.cli.text import as_json as rendered
from mementum.cli.text import counted, printable
from mementum.errors import MementumError, NoSuchAddress, StoreError
from mementum.format.generations import manifest_name
from mementum.records import Damage, record
from mementum.rooting import local_folder
from mementum.storage.disk import Disk, PosixDisk, folder_of
from mementum.storage.local import LocalStore

BESIDE = ("-wal", "-journal", "-shm")  # files that SQLite keeps beside a database


@record
class Read:
    """What was read of a task. `failed` says why its folder could not be read to the end."""

    home: TaskHome
    entered: int
    unreadable: tuple[Damage, ...] = ()
    failed: str | None = None


def rebuild(root: str, *, as_json: bool) -> int:
    """Make the catalog anew and print what was entered; the exit code.

    It may be killed at any point: until the one transaction that fills the catalog the old one stands, and a missing
    one is made by any command."""
    folder = local_folder(root)
    disk = PosixDisk()
    homes = tuple(tasks(LocalStore(disk, str(folder))))
    if not homes:
        raise NoSuchAddress(
            f"{folder} holds no tasks of mementum", next_command="give the folder that open_run was given"
        )
    path = _path(folder)
    # Read first and written at once: a training that saves meanwhile waits for milliseconds, not for a slow disk.
    fresh = open_scratch()
    try:
        with _progress(shown=not as_json and sys.stderr.isatty()) as progress:
            read = tuple(_read(fresh, home, LocalStore(disk, f"{folder}/{home.home}"), progress) for home in homes)
        replaced = fill(path, fresh, disk)
    finally:
        fresh.close()
    catch_up(path, folder, homes, disk)
    if as_json:
        print(rendered(_fields(path, read, replaced=replaced)))
    else:
        _print(path, read, replaced=replaced)
    if any(one.unreadable for one in read):
        return INTEGRITY
    return ERROR if any(one.failed is not None for one in read) else OK


def fill(path: Path, fresh: SqlCatalog, disk: Disk) -> bool:
    """Give the file at `path` the contents of `fresh`; whether the old file had to be replaced.

    A database that works is emptied and filled in one transaction. It is not replaced by another file: a training may
    have it open, and SQLite keeps its log under the name and not with the open file, so that two files of one name
    would share a log. Only a file that no process can use as a catalog is deleted."""
    try:
        catalog = open_sqlite(path)
        try:
            broken = catalog.damage() is not None
            if not broken:
                catalog.become(fresh)
        finally:
            catalog.close()
    except StoreError as error:
        if not is_no_database(error):  # it is locked, or not ours to write, or the disk is full: it stays
            raise
        broken = True
    if not broken:
        return False
    delete(str(path), disk)
    catalog = open_sqlite(path)
    try:
        catalog.become(fresh)
    finally:
        catalog.close()
    return True


def delete(path: str, disk: Disk) -> None:
    """Delete a database file. First what lies beside it: a log that outlived its database would be played into the
    next one, while a broken database without its log is broken still, and found so by whoever comes next."""
    for suffix in (*BESIDE, ""):
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(path + suffix)
    disk.fsync_dir(folder_of(path))


def _path(folder: Path) -> Path:
    try:
        return catalog_path(folder)
    except RuntimeError as cause:  # a user without a home folder, and a root on a network file system
        raise MementumError(
            f"there is no place for the catalog of {folder}: {cause}",
            kept="all checkpoints",
            next_command="set XDG_CACHE_HOME to a folder on a local disk",
        ) from cause


@contextlib.contextmanager
def _progress(*, shown: bool) -> Iterator[Progress | None]:
    """A bar on the terminal, for as long as it takes; nothing where nobody looks."""
    if not shown:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        row = bar.add_task("checkpoints", total=None)
        yield lambda done, total: bar.update(row, completed=done, total=total)


def _read(fresh: SqlCatalog, home: TaskHome, store: LocalStore, progress: Progress | None) -> Read:
    try:
        unreadable = refresh(fresh, home.home, store, progress=progress)
    except StoreError as error:
        return Read(home=home, entered=len(fresh.generations(home.home)), failed=error.message)
    return Read(home=home, entered=len(fresh.generations(home.home)), unreadable=unreadable)


def catch_up(path: Path, folder: Path, homes: Sequence[TaskHome], disk: Disk) -> None:
    """Take in what a training has saved, removed or told since its folder was read. Where it has not, a look at the
    names of the files says so."""
    catalog = open_sqlite(path)
    try:
        for home in homes:
            with contextlib.suppress(StoreError):  # told already, when the folder was read
                store = LocalStore(disk, f"{folder}/{home.home}")
                if _has_changed(catalog, home.home, store):
                    refresh(catalog, home.home, store)
                else:
                    learn(catalog, home.home, store)
    finally:
        catalog.close()


def _has_changed(catalog: SqlCatalog, home: str, store: LocalStore) -> bool:
    present = holding(stat.key for stat in store.list("step_"))
    known = catalog.generations(home)
    return present != {folder: f"{folder}/{manifest_name(generation)}" for folder, generation in known.items()}


def _print(path: Path, read: Sequence[Read], *, replaced: bool) -> None:
    for one in read:
        print(printable(f"{one.home.task}: {counted(one.entered, 'checkpoint')} entered"))
        for damage in one.unreadable:
            print(printable(f"{one.home.home}/{damage.key}: {damage.what}"))
        if one.failed is not None:
            warn(f"{one.home.home} could not be read to the end: {one.failed}")
    how = "was no usable database and was replaced" if replaced else "was filled anew"
    print(printable(f"{path} {how}"))


def _fields(path: Path, read: Sequence[Read], *, replaced: bool) -> dict[str, object]:
    return {
        "catalog": str(path),
        "replaced": replaced,
        "tasks": [
            {
                "task": one.home.task,
                "home": one.home.home,
                "entered": one.entered,
                "unreadable": [{"key": f"{one.home.home}/{each.key}", "what": each.what} for each in one.unreadable],
                "failed": one.failed,
            }
            for one in read
        ],
    }
