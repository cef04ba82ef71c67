"""Verify: finds damage before anything is loaded. Damage is data here, not an exception.

What tells of this process and not of the bytes is no damage and is raised: NotReadableHere (a newer format, a codec or
class that is not here), and StoreError where this user may not read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mementum.errors import AccessRefused, KeyMissing, MementumError, NotReadableHere, UnknownFormat, Unreachable
from mementum.format import blocks, context, generations, index
from mementum.format import manifest as manifests
from mementum.format.codec import is_delta
from mementum.format.generations import key_of
from mementum.records import Block, Buffer, Damage, DataFile, Index, Manifest, StoredFile, record
from mementum.storage.store import Store

INDEX = re.compile(rf"index-\d{{5}}{generations.SUFFIX}\.json")
CONTEXT = re.compile(rf"context-\d{{5}}{generations.SUFFIX}\.json")
LOOKS = 3  # for a manifest that is not there any more when it is read: its next generation takes seconds to make
Take = Callable[[Block, Buffer], None]


@record
class Proved:
    """What the small files of a checkpoint say, once every one of them is proved."""

    index: Index
    context: Mapping[str, Any]


def verify(store: Store, folder: str, manifest: Manifest, *, deep: bool) -> tuple[Damage, ...]:
    """What is wrong with a checkpoint. Shallow: every file is there in its size, index and context are proved.
    Deep: every byte is read, compared with its digest, and decoded."""
    proved = examine(store, folder, manifest)
    if not isinstance(proved, Proved):
        return proved
    files, bases = proved.index.files if deep else (), proved.index.bases
    return tuple(damage for file in files for damage in read_blocks(store, folder, file, _ignore, bases=bases))


def examine(store: Store, folder: str, manifest: Manifest) -> Proved | tuple[Damage, ...]:
    """The shallow verification, with what it has read."""
    damage = _sizes(store, folder, manifest)
    indexes: list[Index] = []
    contexts: list[Mapping[str, Any]] = []
    for file in manifest.files:
        key = key_of(folder, file)
        try:
            if file.digest is not None:
                _prove(file, store.get(key), indexes, contexts)
            elif INDEX.fullmatch(file.name) or CONTEXT.fullmatch(file.name):
                damage.append(Damage(key=key, what="the manifest has no digest of it"))
        except MementumError as error:
            damage.append(damage_of(key, error))
    for pattern, what in ((INDEX, "index"), (CONTEXT, "context")):
        if not any(pattern.fullmatch(file.name) for file in manifest.files):
            damage.append(Damage(key=_key(folder, manifest), what=f"the manifest names no {what}"))
    if not damage:
        damage += _agreement(folder, manifest, indexes[0])
    return tuple(damage) if damage else Proved(index=indexes[0], context=contexts[0])


def read_manifest(store: Store, folder: str) -> Manifest | Damage:
    """The manifest of a folder that holds now, of the highest generation there is, or what is wrong with it."""
    for _ in range(LOOKS):
        names = generations.standing(stat.key.removeprefix(f"{folder}/") for stat in store.list(f"{folder}/meta"))
        key = f"{folder}/{names[-1] if names else manifests.NAME}"
        try:
            return generations.parse(store.get(key, 0, manifests.READ_MAX), key)
        except KeyMissing as error:  # a training that goes on may have put the next generation in its place
            missing = damage_of(key, error)
        except MementumError as error:
            return damage_of(key, error)
    return missing


def read_index(store: Store, folder: str, manifest: Manifest) -> Index | Damage:
    """The index of a checkpoint of one rank, proved."""
    names = [file for file in manifest.files if INDEX.fullmatch(file.name)]
    if len(names) != 1:
        return Damage(key=_key(folder, manifest), what=f"the manifest names {len(names)} indexes")
    key = key_of(folder, names[0])
    indexes: list[Index] = []
    try:
        _prove(names[0], store.get(key), indexes, [])
    except MementumError as error:
        return damage_of(key, error)
    return indexes[0]


def damage_of(key: str, error: MementumError) -> Damage:
    """The damage that an error means; the error itself is raised where it tells of this process."""
    if tells_of_this_process(error):
        raise error
    what = "it is missing" if isinstance(error, KeyMissing) else error.message.removeprefix(f"{key}: ")
    return Damage(key=key, what=what)


def tells_of_this_process(error: MementumError) -> bool:
    tells = (NotReadableHere, Unreachable, AccessRefused)  # a place that does not answer may have every byte
    return isinstance(error, tells) or isinstance(error.__cause__, PermissionError)


def read_blocks(
    store: Store, folder: str, file: DataFile, take: Take, *, bases: Sequence[DataFile] = ()
) -> list[Damage]:
    """Read a data file block by block; every proved and decoded block is given to `take`. `bases`: those of its
    index."""
    for block, found in zip(file.blocks, raw_blocks(store, folder, file, bases), strict=False):
        if isinstance(found, Damage):
            return [found]
        take(block, found)
    return []


def raw_blocks(store: Store, folder: str, file: DataFile, bases: Sequence[DataFile] = ()) -> Iterator[Buffer | Damage]:
    """The blocks of a data file, proved and decoded one after the other; the first damage ends them."""
    key, base = key_of(folder, file), base_of(file, bases)
    for number in range(len(file.blocks)):
        found = numbered_block(store, key, file, base, number)
        yield found
        if isinstance(found, Damage):
            return


def numbered_block(store: Store, key: str, file: DataFile, base: DataFile | None, number: int) -> Buffer | Damage:
    """A block of the file at `key`, proved and decoded; `base`: what blocks of it were coded against."""
    block = file.blocks[number]
    counted = None if base is None else base_block(store, key, block, base, number)
    return counted if isinstance(counted, Damage) else raw_block(store, key, block, counted)


def raw_block(store: Store, key: str, block: Block, counted: Buffer | None = None) -> Buffer | Damage:
    """A block of the file at `key`, proved and decoded; `counted`: what it was coded against."""
    try:
        stored = store.get(key, block.offset, block.size)
        wrong = blocks.damage(block, stored)
        return Damage(key=key, what=wrong) if wrong is not None else blocks.decode(block, stored, counted)
    except MementumError as error:
        return damage_of(key, error)


def base_of(file: DataFile, bases: Sequence[DataFile]) -> DataFile | None:
    """The file that blocks of it were coded against, if any were."""
    return None if file.base is None else next((base for base in bases if key_of("", base) == file.base), None)


def base_block(store: Store, key: str, block: Block, base: DataFile, number: int) -> Buffer | Damage | None:
    """The raw bytes that a block of the file at `key` was coded against, proved, or what is wrong with them; None for a
    block that needs none. What tells of this process is raised."""
    if not is_delta(block.codec):
        return None
    found = raw_block(store, key_of("", base), base.blocks[number])
    return replace(found, what=f"{found.what}; {key} was coded against it") if isinstance(found, Damage) else found


def _ignore(block: Block, raw: Buffer) -> None:
    """Proving a block is all that a deep verification wants of it."""


def _sizes(store: Store, folder: str, manifest: Manifest) -> list[Damage]:
    found: dict[str, int] = {}
    for each in dict.fromkeys((folder, *(file.folder for file in manifest.files if file.folder is not None))):
        try:
            found |= {stat.key: stat.size for stat in store.list(f"{each}/")}
        except MementumError as error:
            return [damage_of(each, error)]
    damage: list[Damage] = []
    for file in manifest.files:
        key = key_of(folder, file)
        size = found.get(key)
        needed = "" if file.folder is None else f"; {folder} ({manifest.id}) needs it"
        if size is None:
            damage.append(Damage(key=key, what=f"it is missing{needed}"))
        elif size != file.size:
            damage.append(Damage(key=key, what=f"it should have {file.size} bytes and has {size}{needed}"))
    return damage


def _prove(file: StoredFile, data: memoryview, indexes: list[Index], contexts: list[Mapping[str, Any]]) -> None:
    """Compare a small file with its digest and read it. UnknownFormat if it is not what was written."""
    if manifests.digest(data) != file.digest:
        raise UnknownFormat("it does not match its digest")
    if INDEX.fullmatch(file.name):
        indexes.append(index.parse(data, file.name))
    elif CONTEXT.fullmatch(file.name):
        contexts.append(context.parse(data, file.name))


def _agreement(folder: str, manifest: Manifest, proof: Index) -> list[Damage]:
    """The data files of the manifest and those of the index are the same, in the same sizes."""
    in_index = {key_of(folder, file): file.size for file in (*proof.files, *proof.bases)}
    in_manifest = {key_of(folder, file): file.size for file in manifest.files if file.digest is None}
    if in_index == in_manifest:
        return []
    names = ", ".join(
        sorted(
            key.removeprefix(f"{folder}/")
            for key in in_index.keys() | in_manifest.keys()
            if in_index.get(key) != in_manifest.get(key)
        )
    )
    return [Damage(key=_key(folder, manifest), what=f"manifest and index do not agree on {names}")]


def _key(folder: str, manifest: Manifest) -> str:
    return f"{folder}/{generations.manifest_name(manifest.generation)}"
