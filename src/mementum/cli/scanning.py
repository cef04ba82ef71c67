"""Scanning: the tasks of a root with all their manifests, whatever else lies there and cannot be read."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from mementum.catalog import facts
from mementum.catalog.rebuild import holding, obstructed
from mementum.catalog.sql import open_sqlite
from mementum.catalog.tasks import DAY, HOME
from mementum.cli.onlooking import Onlooker
from mementum.errors import MementumError
from mementum.records import Damage, Entry, Fact, Manifest, record
from mementum.recover.verify import read_manifest
from mementum.storage.local import LocalStore
from mementum.storage.store import Store


@record
class Scanned:
    """A task's folder as it lies there. `task` is None where no file says its name.

    `manifests` has the whole ones by folder, `unreadable` the damaged ones, and `refused` those that only this process
    cannot read: of a newer format, or not for this user."""

    root: Path
    home: str
    task: str | None
    store: LocalStore
    manifests: Mapping[str, Manifest]
    unreadable: tuple[Damage, ...]
    refused: Mapping[str, MementumError]

    @property
    def name(self) -> str:
        """The task's name, or its folder's."""
        return self.home if self.task is None else self.task

    def command(self, verb: str, *, id: str | None = None, options: str = "") -> str:
        """A command of ours about this task, as it can be typed."""
        words = ["mementum", verb, str(self.root)]
        if self.task is not None:
            words.append(self.task if id is None else f"{self.task}@{id}")
        return shlex.join(words) + options


def scan(root: Path, disk: Onlooker) -> tuple[Scanned, ...]:
    """All folders that have the form of a task's, by day and name."""
    return tuple(_scan_one(root, home, LocalStore(disk, f"{root}/{home}")) for home in homes(root, disk))


def homes(root: Path, disk: Onlooker) -> Iterator[str]:
    for day in disk.listdir(str(root)):
        if day.endswith("/") and DAY.fullmatch(day.rstrip("/")):
            for name in disk.listdir(f"{root}/{day.rstrip('/')}"):
                if name.endswith("/") and HOME.fullmatch(name.rstrip("/")):
                    yield day + name.rstrip("/")


def _scan_one(root: Path, home: str, store: LocalStore) -> Scanned:
    manifests: dict[str, Manifest] = {}
    unreadable: list[Damage] = []
    refused: dict[str, MementumError] = {}
    keys = [stat.key for stat in store.list("step_")]
    for folder in holding(keys):
        try:
            manifest = read_manifest(store, folder)
        except MementumError as error:
            refused[folder] = error
            continue
        if isinstance(manifest, Damage):
            unreadable.append(manifest)
        else:
            manifests[folder] = manifest
    unreadable += obstructed(store, keys)
    named = _named_by_attempts(store) or next((manifest.task for manifest in manifests.values()), None)
    return Scanned(
        root=root,
        home=home,
        task=named,
        store=store,
        manifests=manifests,
        unreadable=tuple(unreadable),
        refused=refused,
    )


def _named_by_attempts(store: LocalStore) -> str | None:
    for stat in store.list("attempts/"):
        task = attempt(store, stat.key).get("task")
        if isinstance(task, str) and task:
            return task
    return None


def attempt(store: Store, key: str) -> Mapping[str, object]:
    """What an attempt's file says; nothing if it cannot be read."""
    try:
        fields = json.loads(bytes(store.get(key)))
    except (ValueError, RecursionError, MementumError):
        return {}
    return fields if isinstance(fields, dict) else {}


def entries(scanned: Scanned) -> tuple[Entry, ...]:
    """The checkpoints with the facts that came later, as a catalog tells them: one in memory, which leaves no file."""
    catalog = open_sqlite(None)
    try:
        for folder, manifest in scanned.manifests.items():
            catalog.add(scanned.home, manifest, folder)
        for prefix in ("journal/", "facts/"):
            found: list[tuple[str, tuple[Fact, ...], int]] = []
            for stat in scanned.store.list(prefix):
                try:
                    data = scanned.store.get(stat.key)
                except MementumError:  # facts are no more than hints: what they say of damage is seen again
                    continue
                found.append((stat.key, facts.parse(data), len(data)))
            catalog.learn_whole(scanned.home, found)
        return tuple(catalog.entries(scanned.home))
    finally:
        catalog.close()
