"""Rebuilding: `mementum rebuild`, which makes the catalog anew from manifests and journals."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from mementum.catalog.place import catalog_path
from mementum.catalog.rebuild import refresh
from mementum.catalog.sql import SqlCatalog, is_no_database, open_sqlite
from mementum.catalog.tasks import TaskHome, tasks
from mementum.cli.failing import ERROR, INTEGRITY, OK, warn
from mementum.cli.reading import root_folder
from mementum.cli.text import as_json as rendered
from mementum.cli.text import counted, printable
from mementum.errors import MementumError, NoSuchAddress, StoreError
from mementum.records import Damage, record
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
    folder = root_folder(root)
    disk = PosixDisk()
    homes = tuple(tasks(disk, str(folder)))
    if not homes:
        raise NoSuchAddress(
            f"{folder} holds no tasks of mementum", next_command="give the folder that open_run was given"
        )
    path = _path(folder)
    # Read first and written at once: a training that saves meanwhile waits for milliseconds, not for a slow disk.
    fresh = open_sqlite(None)
    try:
        read = tuple(_read(fresh, home, LocalStore(disk, f"{folder}/{home.home}")) for home in homes)
        replaced = fill(path, fresh, disk)
    finally:
        fresh.close()
    _catch_up(path, folder, homes, disk)
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


def _read(fresh: SqlCatalog, home: TaskHome, store: LocalStore) -> Read:
    try:
        unreadable = refresh(fresh, home.home, store)
    except StoreError as error:
        return Read(home=home, entered=len(fresh.entries(home.home)), failed=error.message)
    return Read(home=home, entered=len(fresh.entries(home.home)), unreadable=unreadable)


def _catch_up(path: Path, folder: Path, homes: Sequence[TaskHome], disk: Disk) -> None:
    """Take in what a training has saved or removed since its folder was read."""
    catalog = open_sqlite(path)
    try:
        for home in homes:
            with contextlib.suppress(StoreError):  # told already, when the folder was read
                refresh(catalog, home.home, LocalStore(disk, f"{folder}/{home.home}"))
    finally:
        catalog.close()


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
