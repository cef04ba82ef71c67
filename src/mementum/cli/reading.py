"""Reading: from a root to its tasks and checkpoints, without a trace in folders that are not ours."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from mementum.catalog.address import Address, parse, select
from mementum.catalog.catalog import Catalog
from mementum.catalog.place import cached_path
from mementum.catalog.rebuild import refresh
from mementum.catalog.sql import open_sqlite
from mementum.catalog.tasks import TaskHome, tasks
from mementum.errors import AccessRefused, CheckpointDamaged, MementumError, NoSuchAddress, StoreError, Unreachable
from mementum.format import generations
from mementum.opening import open_catalog
from mementum.records import Damage, Entry, record
from mementum.recover.verify import read_manifest
from mementum.rooting import Root, open_root, part_of
from mementum.storage.store import Store

READERS = 16  # requests at once to a far store, of which each waits some tens of milliseconds for its answer


@record
class Held:
    """A checkpoint and its task's folder. `unreadable` says what is wrong with the manifest that lies there now."""

    task: str
    home: str
    entry: Entry
    unreadable: Damage | None = None

    @property
    def id(self) -> str:
        return self.entry.manifest.id

    @property
    def damaged(self) -> str | None:
        """What is wrong with it, as far as is known now."""
        if self.unreadable is not None:
            return f"{self.unreadable.key}: {self.unreadable.what}"
        return self.entry.damaged

    @property
    def place(self) -> str:
        """Its folder, relative to the root."""
        return f"{self.home}/{self.entry.folder}"


@record
class Contents:
    """What lies in a root. Keys of `nameless` (manifests that cannot be read) are relative to the root."""

    root: Root
    homes: tuple[TaskHome, ...]
    held: tuple[Held, ...]
    nameless: tuple[Damage, ...]

    def path(self, held: Held) -> str:
        """Where a checkpoint lies, as it can be typed."""
        return f"{self.root.name}/{held.place}"

    def of_home(self, home: TaskHome) -> tuple[Held, ...]:
        """The checkpoints in one task's folder."""
        return tuple(held for held in self.held if held.home == home.home)

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(home.task for home in self.homes)

    @property
    def unreadable(self) -> tuple[Damage, ...]:
        """All manifests that cannot be read, those that were known before included."""
        return (*self.nameless, *(held.unreadable for held in self.held if held.unreadable is not None))

    def of(self, task: str) -> Contents:
        """The same with one task only. NoSuchAddress names the others."""
        homes = tuple(home for home in self.homes if home.task == task)
        if not homes:
            known = ", ".join(repr(name) for name in sorted(set(self.tasks)))
            raise NoSuchAddress(f"there is no task {task!r}; there are: {known}", next_command="mementum ls ROOT")
        inside = tuple(f"{home.home}/" for home in homes)
        return Contents(
            root=self.root,
            homes=homes,
            held=tuple(held for held in self.held if held.task == task),
            nameless=tuple(damage for damage in self.nameless if damage.key.startswith(inside)),
        )


def look(text: str) -> Contents:
    """All that is in a root. UsageError if it is none; NoSuchAddress, and nothing written, if it has no tasks."""
    root = open_root(text)
    homes = tuple(tasks(root.store))
    if not homes:
        raise NoSuchAddress(
            f"{root.name} holds no tasks of mementum", next_command="give the folder that open_run was given"
        )
    try:
        return _read(root, homes, _catalog(root))
    except (Unreachable, AccessRefused):
        raise
    except MementumError:
        # The catalog's file is damaged or not ours to write. It is only a cache, so what lies in the root is read anew.
        return _read(root, homes, open_sqlite(None))


def _catalog(root: Root) -> Catalog:
    """That of a far root lies in the user's cache folder; in memory where that cannot be."""
    if root.folder is not None:
        return open_catalog(root.folder, emit=lambda event: None)
    try:
        return open_sqlite(cached_path(root.name))
    except (StoreError, OSError, RuntimeError):  # the last from a user without a home folder
        return open_sqlite(None)


def _read(root: Root, homes: tuple[TaskHome, ...], catalog: Catalog) -> Contents:
    held: list[Held] = []
    nameless: list[Damage] = []
    try:
        for home in homes:
            store = part_of(root, home.home)
            damage = refresh(catalog, home.home, store)
            nameless += (_under(home.home, found) for found in damage)
            held += _checked(catalog, home, store, readers=1 if root.folder is not None else READERS)
    finally:
        catalog.close()
    named = {one.unreadable.key for one in held if one.unreadable is not None}
    nameless = [damage for damage in nameless if damage.key not in named]
    return Contents(root=root, homes=homes, held=tuple(held), nameless=tuple(nameless))


def _checked(catalog: Catalog, home: TaskHome, store: Store, *, readers: int) -> Iterator[Held]:
    """The catalog's entries, each compared with the manifest that lies there now: the file decides."""
    with ThreadPoolExecutor(readers, thread_name_prefix="mementum-read") as pool:
        for held in pool.map(lambda entry: _check(home, store, entry), catalog.entries(home.home)):
            if held is not None:
                yield held


def _check(home: TaskHome, store: Store, listed: Entry) -> Held | None:
    """None for one that is not there any more."""
    entry = listed
    try:
        entry = settled_since(store, listed) or listed
        damage = manifest_damage(store, entry)
    except MementumError as error:  # it may be whole, but not for this user or this version
        damage = Damage(key=_manifest_key(entry), what=error.message)
    if damage is None:
        return Held(task=home.task, home=home.home, entry=entry)
    if not exists(store, entry):
        return None
    return Held(task=home.task, home=home.home, entry=entry, unreadable=_under(home.home, damage))


def manifest_damage(store: Store, entry: Entry) -> Damage | None:
    """What is wrong with the manifest that lies there now, be it that it is another checkpoint's."""
    manifest = read_manifest(store, entry.folder)
    if isinstance(manifest, Damage):
        return manifest
    if manifest.id != entry.manifest.id:
        return Damage(key=_manifest_key(entry), what=f"it is that of checkpoint {manifest.id}")
    return None


def exists(store: Store, entry: Entry) -> bool:
    """Whether the checkpoint's manifest is there. A training that is under way removes what it no longer keeps."""
    prefix = f"{entry.folder}/"
    return bool(generations.standing(stat.key.removeprefix(prefix) for stat in store.list(f"{prefix}meta")))


def settled_since(store: Store, entry: Entry) -> Entry | None:
    """The same checkpoint in the generation that holds now, if that is a later one: a training that is under way
    compresses what it has saved, and then takes away the files of the generation before."""
    manifest = read_manifest(store, entry.folder)
    if isinstance(manifest, Damage) or manifest.id != entry.manifest.id:
        return None
    return replace(entry, manifest=manifest) if manifest.generation > entry.manifest.generation else None


def _manifest_key(entry: Entry) -> str:
    return f"{entry.folder}/{generations.manifest_name(entry.manifest.generation)}"


def _under(home: str, damage: Damage) -> Damage:
    return Damage(key=f"{home}/{damage.key}", what=damage.what)


def address_in(contents: Contents, text: str | None) -> Address:
    return Address() if text is None else parse(text, tasks=contents.tasks)


def find(contents: Contents, address: Address) -> Held:
    """The checkpoint that an address means."""
    if address.task is not None:
        contents = contents.of(address.task)
    # By the name of the folder's task: a checkpoint that was copied to another task is found where it lies.
    filed = [_filed(held) for held in contents.held]
    meant = select(filed, address)
    return next(held for held, entry in zip(contents.held, filed, strict=True) if entry is meant)


def _filed(held: Held) -> Entry:
    return replace(held.entry, manifest=replace(held.entry.manifest, task=held.task), damaged=held.damaged)


def require_readable(held: Held) -> None:
    if held.unreadable is not None:
        damage = held.unreadable
        raise CheckpointDamaged(
            held.id, [(damage.key, damage.what)], kept="its other files", next_command="mementum verify ROOT --deep"
        )
