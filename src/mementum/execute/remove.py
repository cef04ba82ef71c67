"""Remove: takes a checkpoint away, manifest first, and finds the parts that no manifest names."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from mementum.errors import CheckpointError, KeyMissing, MementumError, NotReadableHere
from mementum.format import generations, index
from mementum.format import manifest as manifests
from mementum.records import Manifest, record
from mementum.storage.store import Stat, Store

# What we write into a checkpoint's folder whatever the training is made of. Its files of weights have the names of the
# models besides, which only an index or a manifest can tell from a file that somebody put there.
OURS = re.compile(rf"model(\.frozen)?\.safetensors|context-\d{{5}}\.json|{generations.REWRITTEN.pattern}")
MARK = "placing-"  # begins the name of what says whose half copy lies in a folder
WEIGHTS, FROZEN = ".safetensors", ".frozen.safetensors"
WEIGHTS_LEVEL = 0
INDEX = re.compile(rf"index-\d{{5}}{generations.SUFFIX}\.json")
FOLDER = re.compile(r"step_\d{10,}(-\d+)?")
LOOKS = 3  # for manifests of one checkpoint: another process may put a next generation, and each takes seconds to make


@record
class Unlisted:
    """A checkpoint that does not exist any more: its own files, which are still there, and the `text` of the manifest
    that held. None: there was none, or it could not be read."""

    parts: tuple[str, ...] = ()
    name: str | None = None
    text: bytes | None = None
    older: tuple[tuple[str, bytes], ...] = ()  # the same of those that went before it, the newest first


def refusal(manifest: Manifest, store: Store, folder: str) -> str | None:
    """Why the folder is not to be touched, or None: its manifest is that of another checkpoint.

    Who was superseded and stood still may find that the later attempt has gone back and saved in this very folder."""
    for name in _standing(store, folder):
        if not _is_of(store, f"{folder}/{name}", manifest.id):
            return f"{folder}/{name} is not the manifest of {manifest.id}"
    return None


def unlist(manifest: Manifest, store: Store, folder: str) -> Unlisted | str:
    """Take its manifests away, the lower generations first: from here on it does not exist. Its own files are what
    `drop` takes next. Or why it is still there.

    When they are gone it looks once more: another process that rewrites it may have put the next generation meanwhile.
    That one in its turn looks, when its manifest is there, whether the one before it is: one of the two sees the other.

    Where no manifest is left, what lies in the folder may be a save of a later attempt, and is a sweep's to judge."""
    named = dict.fromkeys(file.name for file in manifest.files if file.folder is None)
    held: tuple[str, bytes | None] | None = None
    older: list[tuple[str, bytes]] = []
    for _ in range(LOOKS):
        names = _standing(store, folder)
        if not names:
            return (
                Unlisted()
                if held is None
                else Unlisted(parts=tuple(named), name=held[0], text=held[1], older=tuple(older))
            )
        for name in names:
            text = _text(store, f"{folder}/{name}")
            for part in () if text is None else _named(text, f"{folder}/{name}"):
                named.setdefault(part)
            if held is not None and held[1] is not None:
                older.insert(0, (held[0], held[1]))
            held = name, text
        for name in names:
            if not _is_of(store, f"{folder}/{name}", manifest.id):
                return f"{folder}/{name} is not the manifest of {manifest.id}"
            store.delete(f"{folder}/{name}")
    return f"{folder}: its manifest is replaced faster than it can be removed"


def drop(store: Store, folder: str, parts: Sequence[str], spared: Collection[str]) -> None:
    """Delete the files of a checkpoint that has no manifest any more, but for the keys in `spared`."""
    for part in sorted(parts, key=_turn):
        if f"{folder}/{part}" not in spared:
            store.delete(f"{folder}/{part}")


def needed_elsewhere(store: Store, known: Mapping[str, Manifest] | None = None) -> frozenset[str] | None:
    """Keys of files that checkpoints of other folders name as theirs: bases of deltas, frozen weights. None where a
    newer mementum wrote a manifest: what that names cannot be known.

    Of a manifest that names nothing of the kind its first bytes are read, which say so. `known`: manifests by their
    keys, for a store that takes a request for each. One never changes, so that where it has still the size that ours
    has it is not read again; whatever else lies there is."""
    listed = tuple(store.list("step_"))
    sizes = {stat.key: stat.size for stat in listed}
    same = {key: one for key, one in (known or {}).items() if sizes.get(key) == len(manifests.render(one))}
    return _needed(store, _in_folders(listed), same)


def orphans(store: Store) -> tuple[str, ...]:
    """Keys of parts in folders without a manifest: what saves and removals that were killed left behind.

    A half copy from a tier has a mark, and is left to who knows whether it is wanted.
    A manifest that somebody made a link or a folder is no object, and its parts are no orphans: we never leave that.
    Only the holder of the task may delete them: to anybody else a save in progress looks the same."""
    found: list[str] = []
    every = _folders(store)
    for folder, names in every.items():
        if any(_looks_like_a_manifest(name) or name.startswith(MARK) for name in names):
            continue
        if any(_taken(store, f"{folder}/{name}") for name in generations.possible(names)):
            continue
        ours = {name for name in names if OURS.fullmatch(name)}
        if any(name.endswith(WEIGHTS) for name in names if name not in ours):
            ours |= _known(store, every, folder)
        found += (f"{folder}/{name}" for name in names if name in ours)
    return _unneeded(store, every, found)


def _taken(store: Store, key: str) -> bool:
    """By something that is no object, of which only a home knows: objects were listed."""
    taken = getattr(store, "taken", None)
    return taken is not None and bool(taken(key))


def clear(store: Store, keys: Sequence[str]) -> None:
    """Delete orphans. Their manifests first, though they are gone: who removed one may have died before the fsync, and
    a delete is durable even where nothing is left to delete. Else a power cut could bring back a manifest alone."""
    for folder, names in _by_folder(keys).items():
        for name in generations.possible(names):
            store.delete(f"{folder}/{name}")
    for key in keys:
        store.delete(key)


def outdated(store: Store) -> tuple[str, ...]:
    """Keys of what a settling that was killed left beside the manifest that holds: lower generations of it, and parts
    that came with a generation and that it does not name. Where anything cannot be read, nothing is."""
    found: list[str] = []
    every = _folders(store)
    for folder, names in every.items():
        lower, parts = generations.standing(names), [name for name in names if generations.REWRITTEN.fullmatch(name)]
        originals = {generations.part_name(name, 1) for name in parts}
        if lower and (len(lower) > 1 or len(originals) < len(parts)):  # else there is nothing beside what it names
            found += (f"{folder}/{name}" for name in _outdated(store, every, folder, lower, parts))
    return _unneeded(store, every, found)


def clear_outdated(store: Store, keys: Sequence[str]) -> None:
    """Delete what is outdated, manifests first. Before them a name that is not there: that makes the folder durable as
    it stands, and with it the manifest that holds, whose writer may have died before the fsync."""
    for folder in _by_folder(keys):
        present = _standing(store, folder)
        highest = max(generations.generation_of(name) or 1 for name in (*present, manifests.NAME))
        store.delete(f"{folder}/{generations.manifest_name(highest + 1)}")
    for key in sorted(keys, key=lambda key: _turn(key.partition("/")[2])):
        store.delete(key)


def discard(store: Store, folder: str) -> None:
    """Take away what a failed save has left in its folder: the manifest first, though its put has failed, since its
    name may be on the disk."""
    store.delete(f"{folder}/{manifests.NAME}")
    for stat in tuple(store.list(f"{folder}/")):
        store.delete(stat.key)


def _outdated(
    store: Store, every: Mapping[str, Sequence[str]], folder: str, standing: Sequence[str], parts: Sequence[str]
) -> Iterator[str]:
    try:
        key = f"{folder}/{standing[-1]}"
        holds = generations.parse(store.get(key, 0, manifests.READ_MAX), key)
        if refusal(holds, store, folder) is not None:  # two checkpoints in one folder: that is for a person to look at
            return
    except MementumError:
        return
    yield from standing[:-1]
    named = {file.name for file in holds.files if file.folder is None}
    for name in parts:  # one generation above is what a settling had begun; a higher one is not our doing
        if name not in named and generations.brought_by(name) <= holds.generation + 1:
            yield name
    if WEIGHTS_LEVEL not in holds.levels:  # their names are those of the models: an index that is still there has them
        known = _known(store, every, folder)
        yield from (name for name in every[folder] if name.endswith(WEIGHTS) and name in known - named)


def _standing(store: Store, folder: str) -> tuple[str, ...]:
    prefix = f"{folder}/"
    return generations.standing(stat.key.removeprefix(prefix) for stat in store.list(f"{prefix}meta"))


def _is_of(store: Store, key: str, id: str) -> bool:
    """Whether a manifest is that of a checkpoint. One that is gone by now, by whoever rewrites it, is nobody else's."""
    try:
        return manifests.has_id(store.get(key, 0, manifests.HEAD), id)
    except KeyMissing:
        return True


def _text(store: Store, key: str) -> bytes | None:
    try:
        return bytes(store.get(key, 0, manifests.READ_MAX))
    except KeyMissing:
        return None


def _named(text: bytes, key: str) -> tuple[str, ...]:
    """The files of its own that a manifest names; nothing where it cannot be read."""
    try:
        return tuple(file.name for file in generations.parse(text, key).files if file.folder is None)
    except CheckpointError:
        return ()


def _files(store: Store, key: str) -> tuple[str, ...]:
    text = _text(store, key)
    return () if text is None else _named(text, key)


def _known(store: Store, every: Mapping[str, Sequence[str]], folder: str) -> set[str]:
    """Names of files of weights that are ours: the folder's index has them, or some manifest of the task."""
    known: set[str] = set()
    for name in every[folder]:
        if INDEX.fullmatch(name):
            try:
                known |= {file.name for file in index.parse(store.get(f"{folder}/{name}"), name).files}
            except CheckpointError:
                continue
    for other, names in every.items():
        for name in generations.standing(names):
            known.update(_files(store, f"{other}/{name}"))
    weights = {name for name in known if name.endswith(WEIGHTS)}
    return weights | {name.removesuffix(WEIGHTS) + FROZEN for name in weights}


def _unneeded(store: Store, every: Mapping[str, Sequence[str]], found: Sequence[str]) -> tuple[str, ...]:
    """Those of the keys that no checkpoint of another folder names as its own."""
    needed = _needed(store, every) if found else frozenset[str]()
    return () if needed is None else tuple(key for key in found if key not in needed)


def _needed(
    store: Store, every: Mapping[str, Sequence[str]], known: Mapping[str, Manifest] | None = None
) -> frozenset[str] | None:
    known, needed = known or {}, set[str]()
    for folder, names in every.items():
        for name in generations.standing(names):
            key = f"{folder}/{name}"
            try:
                if key not in known and manifests.is_plain(store.get(key, 0, manifests.HEAD)):
                    continue
                found = known.get(key) or generations.parse(store.get(key, 0, manifests.READ_MAX), key)
            except NotReadableHere:
                return None
            except (CheckpointError, KeyMissing):
                continue
            needed.update(generations.key_of(folder, file) for file in found.files if file.folder is not None)
    return frozenset(needed)


def _turn(name: str) -> int:
    """In which order files of one checkpoint are deleted. The index after what it names: while a file of weights is
    there, a sweep can tell by it that it is ours."""
    return 0 if generations.generation_of(name) is not None else 2 if INDEX.fullmatch(name) else 1


def _looks_like_a_manifest(name: str) -> bool:
    return name.startswith("meta") and name.endswith(".json")


def _folders(store: Store) -> dict[str, list[str]]:
    """Names of the objects that lie directly in a checkpoint's folder."""
    return _in_folders(store.list("step_"))


def _in_folders(listed: Iterable[Stat]) -> dict[str, list[str]]:
    found = _by_folder(stat.key for stat in listed)
    return {
        folder: [name for name in names if "/" not in name]
        for folder, names in found.items()
        if FOLDER.fullmatch(folder)
    }


def _by_folder(keys: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for key in keys:
        folder, _, name = key.partition("/")
        found.setdefault(folder, []).append(name)
    return found
