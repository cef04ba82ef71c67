"""Rebuild: brings a catalog to what the manifests and journals say, from wherever it stands."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mementum.catalog import facts
from mementum.catalog.catalog import Catalog
from mementum.errors import MementumError, NotReadableHere
from mementum.format import manifest as manifests
from mementum.records import Damage
from mementum.storage.store import Home, Store

MANIFEST = re.compile(r"(step_\d{10,}(?:-\d+)?)/meta\.json")
HEAD = 256  # bytes of a manifest in which its id stands


def refresh(catalog: Catalog, home: str, store: Home, *, strict: bool = False) -> tuple[Damage, ...]:
    """Enter what is missing, drop what is gone, take in longer journals. Manifests that cannot be read come back
    as damage: they are not entered, and nothing of theirs is deleted. With `strict`, one that only a newer mementum can
    read is raised as NotReadableHere: who goes on from an older checkpoint should know."""
    damage: list[Damage] = []
    known = {entry.folder: entry.manifest.id for entry in catalog.entries(home)}
    present: set[str] = set()
    folders: set[str] = set()
    for stat in store.list("step_"):
        folders.add(stat.key.partition("/")[0])
        match = MANIFEST.fullmatch(stat.key)
        if match is None:
            continue
        present.add(match[1])
        try:
            if match[1] in known and _has_id(store, stat.key, known[match[1]]):
                continue
            catalog.add(home, manifests.parse(store.get(stat.key), stat.key), match[1])
        except MementumError as error:
            if strict and isinstance(error, NotReadableHere):
                raise
            damage.append(Damage(key=stat.key, what=error.message))
    damage += _obstructed(store, folders - present)
    for folder in known.keys() - present:
        catalog.forget(home, folder)
    read = catalog.read_sizes(home)
    for prefix in ("journal/", "facts/"):
        for stat in store.list(prefix):
            if read.get(stat.key) != stat.size:
                data = store.get(stat.key)
                catalog.learn(home, stat.key, facts.parse(data), size=len(data))
    return tuple(damage)


def _obstructed(store: Home, folders: set[str]) -> Iterator[Damage]:
    """Manifests that somebody made a link or a folder: no objects any more, and yet no sign of a save that was cut."""
    for folder in sorted(folders):
        key = f"{folder}/{manifests.NAME}"
        if MANIFEST.fullmatch(key) and store.taken(key) and store.locate(key) is None:
            yield Damage(key=key, what="a link or a folder stands in its place")


def _has_id(store: Store, key: str, id: str) -> bool:
    """Whether the catalog means this manifest: a step that is saved again after its removal takes the old folder, and
    of a catalog that lost its last words in a power cut, or lies on another host, nobody took the old entry out."""
    return f'"id": "{id}"'.encode() in bytes(store.get(key, 0, HEAD))
