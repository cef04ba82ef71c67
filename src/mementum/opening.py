"""Opening: from a root and a task's name to a claimed, swept home with a catalog that is up to date."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from mementum.catalog import facts, tasks
from mementum.catalog.catalog import Catalog
from mementum.catalog.place import catalog_path, is_remote
from mementum.catalog.rebuild import refresh
from mementum.catalog.servers import open_server
from mementum.catalog.shared import SharedCatalog
from mementum.catalog.sql import SqlCatalog, open_sqlite
from mementum.catalog.standby import StandbyCatalog
from mementum.clock import Clock
from mementum.errors import StoreError, UsageError
from mementum.events import Emit, Note, PassedOver
from mementum.execute.claim import Attempt, claim, let_go
from mementum.masking import shown
from mementum.places import Places
from mementum.pruning import sweep
from mementum.records import Damage, record
from mementum.storage.disk import Disk, PosixDisk, folder_of
from mementum.storage.local import LocalStore

TASK_MAX = 1000  # characters of a task's name; it goes into manifests, and part of it into a folder's name


@record
class Opened:
    """A task's home, held by this process."""

    task: str
    home: str
    store: LocalStore
    catalog: Catalog
    attempt: Attempt
    places: Places
    unreadable: tuple[Damage, ...] = ()  # manifests that are not what was written

    @property
    def journal(self) -> str:
        return facts.journal_key(self.attempt.number)

    def close(self) -> None:
        self.catalog.close()
        for site in self.places.sites:
            site.close()
        let_go(self.attempt)


def open_task(
    root: str | os.PathLike[str],
    task: str,
    *,
    about: Mapping[str, object],
    clock: Clock,
    emit: Emit,
    takeover: bool = False,
    share_with: str | None = None,
    places: Places | None = None,
) -> Opened:
    """Claim the task, remove what dead attempts left, and bring the catalog up to date. `share_with`: the url of a
    catalog that is told, in the background, what this one is told. `places`: tiers, which are taken too; the attempt's
    number is above all that they know, and what they know is known here."""
    folder, places = root_folder(root), places or Places((), emit=emit)
    if not (isinstance(task, str) and 0 < len(task) <= TASK_MAX and task.isprintable()):
        raise UsageError(f"a task's name has 1 to {TASK_MAX} printable characters, got {task!r:.60}")
    disk = PosixDisk()
    far = places.find_home(task)
    home = _home(disk, folder, task, clock.now(), far)
    store = LocalStore(disk, f"{folder}/{home}")
    shared, above = is_remote(folder), places.newest()
    attempt = claim(
        store, task=task, facts=about, clock=clock, emit=emit, shared=shared, takeover=takeover, above=above
    )
    try:
        if attempt.lease is not None:
            attempt.lease.start()
        if attempt.sure:  # else somebody may still be writing what looks like a leftover; it is swept later
            sweep(store, emit=emit)
        places.bring_attempts(store, attempt.number)
        places.join(store, home, task=task, own=attempt.number)
        catalog, damages = _refreshed(folder, home, store, emit)
        if share_with is not None:
            catalog = _shared(catalog, share_with, home, store, emit)
        for damage in damages:
            emit(PassedOver(id=damage.key, what=damage.what))
    except BaseException:
        let_go(attempt)
        raise
    return Opened(
        task=task, home=home, store=store, catalog=catalog, attempt=attempt, places=places, unreadable=damages
    )


def _home(disk: Disk, root: Path, task: str, now_s: float, far: str | None) -> str:
    """The task's folder, or the one it will have, relative to the root: `far`, that of a tier which has it. What lies
    behind a link is not in the root."""
    try:
        found = tasks.find(LocalStore(disk, str(root)), task)
        if found is not None:
            return found
        home = far or tasks.new_home(task, now_s)
        day = folder_of(home)
        if not disk.has_folder(f"{root}/{day}") and LocalStore(disk, str(root)).taken(day):
            raise StoreError(
                day, f"{root}/{day} is not a folder, and links are not followed", next_command="choose another root"
            )
        return home
    except OSError as error:
        raise _unreadable(root, error) from error


def _refreshed(root: Path, home: str, store: LocalStore, emit: Emit) -> tuple[Catalog, tuple[Damage, ...]]:
    """The catalog, and what of the task's manifests cannot be read. Whatever becomes of its file later, it goes on."""
    catalog = open_catalog(root, emit=emit)
    try:
        damages = refresh(catalog, home, store, strict=True)
        return StandbyCatalog(catalog, home=home, store=store, emit=emit), damages
    except StoreError as error:  # a torn page of the catalog shows when it is read; the store's own faults come again
        catalog.close()
        emit(Note(text=f"the catalog of {root} cannot be used ({error}); it is kept in memory, saving goes on"))
        catalog = open_sqlite(None)
        return catalog, refresh(catalog, home, store)


def _shared(catalog: Catalog, url: str, home: str, store: LocalStore, emit: Emit) -> Catalog:
    return SharedCatalog(catalog, lambda: open_server(url), name=shown(url), home=home, store=store, emit=emit)


def open_catalog(root: Path, *, emit: Emit) -> SqlCatalog:
    """The root's catalog in its file; in memory where that cannot be written, since it is only a cache."""
    try:
        return open_sqlite(catalog_path(root))
    except (StoreError, OSError, RuntimeError) as error:  # the last from a user without a home folder
        emit(Note(text=f"the catalog of {root} cannot be used ({error}); it is kept in memory, saving goes on"))
        return open_sqlite(None)


def root_folder(root: str | os.PathLike[str]) -> Path:
    """The root's folder, absolute and without links. UsageError or StoreError if it can be none."""
    text = os.fspath(root)
    if not isinstance(text, str) or not text or "\0" in text:
        raise UsageError(f"a root is a folder's path, got {text!r}")
    if "://" in text:
        raise UsageError(
            f"{shown(text)}: a training has its root in a folder of its own machine",
            next_command=f"give a folder's path, and `tiers: [{{url: {shown(text)}}}]` for copies there",
        )
    folder = Path(text).expanduser().resolve()
    try:
        is_other = folder.exists() and not folder.is_dir()
    except OSError as error:
        raise _unreadable(folder, error) from error
    if is_other:
        raise StoreError(text, f"{folder} is not a folder", next_command="choose another root")
    return folder


def _unreadable(folder: Path, error: OSError) -> StoreError:
    return StoreError(
        str(folder),
        f"{folder} cannot be read: {error.strerror or error}",
        kept="all that is in it",
        next_command=f"`ls -ld {folder}` shows who may read it",
    )
