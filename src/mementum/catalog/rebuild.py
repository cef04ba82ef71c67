"""Rebuild: brings a catalog to what the manifests and journals say, from wherever it stands."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from mementum.catalog import facts
from mementum.catalog.catalog import Catalog
from mementum.errors import KeyMissing, MementumError, NotReadableHere, StoreError
from mementum.format import generations
from mementum.format import manifest as manifests
from mementum.records import Damage, Manifest
from mementum.storage.store import Home, Store

FOLDER = re.compile(r"step_\d{10,}(?:-\d+)?")
LOOKS = 3  # for a manifest that is replaced while we read: each generation takes seconds to make


def refresh(catalog: Catalog, home: str, store: Home, *, strict: bool = False) -> tuple[Damage, ...]:
    """Enter what is missing, drop what is gone, take in longer journals. Manifests that cannot be read come back
    as damage: they are not entered, and nothing of theirs is deleted. With `strict`, one that only a newer mementum can
    read is raised as NotReadableHere: who goes on from an older checkpoint should know."""
    damage: list[Damage] = []
    known = {entry.folder: entry.manifest for entry in catalog.entries(home)}
    keys = [stat.key for stat in store.list("step_")]
    present = holding(keys)
    gone: set[str] = set()
    for folder, key in present.items():
        try:
            if folder in known and _is_known(store, key, known[folder]):
                continue
            manifest = _newest(store, folder, key)
        except MementumError as error:
            if strict and isinstance(error, NotReadableHere):
                raise
            damage.append(Damage(key=key, what=error.message))
            continue
        if manifest is None:
            gone.add(folder)
        else:
            catalog.add(home, manifest, folder)
    damage += obstructed(store, keys)
    for folder in known.keys() - (present.keys() - gone):
        catalog.forget(home, folder)
    learn(catalog, home, store)
    return tuple(damage)


def learn(catalog: Catalog, home: str, store: Home) -> None:
    """Take in what journals say that they did not say before. A journal of many days is not read from its beginning at
    every save; its last line, if that is torn, is read again."""
    read = catalog.read_sizes(home)
    for prefix in ("journal/", "facts/"):
        for stat in store.list(prefix):
            known = read.get(stat.key)
            if known == stat.size:
                continue
            begin = known if known is not None and known < stat.size else 0
            data = bytes(store.get(stat.key, begin))
            whole = data.rfind(b"\n") + 1 if prefix == "journal/" else len(data)
            catalog.learn(home, stat.key, facts.parse(data), size=begin + whole, begin=begin)


def holding(keys: Iterable[str]) -> dict[str, str]:
    """The key of the manifest that holds in every checkpoint's folder that has one."""
    return {folder: key for folder, key in generations.newest(keys).items() if FOLDER.fullmatch(folder)}


def obstructed(store: Home, keys: Iterable[str]) -> Iterator[Damage]:
    """Manifests that somebody made a link or a folder: no objects any more, and yet no sign of a save that was cut.
    `keys` are those of the task's checkpoints."""
    folders: dict[str, list[str]] = {}
    for key in keys:
        folder, _, name = key.partition("/")
        folders.setdefault(folder, []).append(name)
    for folder, names in sorted(folders.items()):
        if not FOLDER.fullmatch(folder) or generations.standing(names):
            continue
        for name in generations.possible(names):
            key = f"{folder}/{name}"
            if store.taken(key) and store.locate(key) is None:
                yield Damage(key=key, what="a link or a folder stands in its place")


def _newest(store: Store, folder: str, key: str) -> Manifest | None:
    """The manifest that holds in a folder, or None where it was removed since it was listed. A training that is under
    way may also have put the next generation in its place."""
    for _ in range(LOOKS):
        try:
            return generations.parse(store.get(key, 0, manifests.READ_MAX), key)
        except KeyMissing:
            key = holding(stat.key for stat in store.list(f"{folder}/meta")).get(folder, "")
            if not key:
                return None
    raise StoreError(folder, f"{folder}: its manifest is replaced faster than it can be read", next_command="try again")


def _is_known(store: Store, key: str, known: Manifest) -> bool:
    """Whether the catalog means this manifest: a step that is saved again after its removal takes the old folder, and
    of a catalog that lost its last words in a power cut, or lies on another host, nobody took the old entry out."""
    if key.rpartition("/")[2] != generations.manifest_name(known.generation):
        return False
    try:
        return manifests.has_id(store.get(key, 0, manifests.HEAD), known.id)
    except KeyMissing:
        return False
