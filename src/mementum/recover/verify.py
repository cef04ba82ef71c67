"""Verify: finds damage before anything is loaded. Damage is data here, not an exception.

What tells of this process and not of the bytes is no damage and is raised: NotReadableHere (a newer format, a codec or
class that is not here), and StoreError where this user may not read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from mementum.errors import KeyMissing, MementumError, NotReadableHere, UnknownFormat
from mementum.format import blocks, context, generations, index
from mementum.format import manifest as manifests
from mementum.records import Block, Buffer, Damage, DataFile, Index, Manifest, StoredFile, record
from mementum.storage.store import Store

INDEX = re.compile(rf"index-\d{{5}}{generations.SUFFIX}\.json")
CONTEXT = re.compile(r"context-\d{5}\.json")
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
    files = proved.index.files if deep else ()
    return tuple(damage for file in files for damage in read_blocks(store, f"{folder}/{file.name}", file, _ignore))


def examine(store: Store, folder: str, manifest: Manifest) -> Proved | tuple[Damage, ...]:
    """The shallow verification, with what it has read."""
    damage = _sizes(store, folder, manifest)
    indexes: list[Index] = []
    contexts: list[Mapping[str, Any]] = []
    for file in manifest.files:
        key = f"{folder}/{file.name}"
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


def damage_of(key: str, error: MementumError) -> Damage:
    """The damage that an error means; the error itself is raised where it tells of this process."""
    if tells_of_this_process(error):
        raise error
    return Damage(key=key, what=error.message)


def tells_of_this_process(error: MementumError) -> bool:
    return isinstance(error, NotReadableHere) or isinstance(error.__cause__, PermissionError)


def read_blocks(store: Store, key: str, file: DataFile, take: Take) -> list[Damage]:
    """Read a data file block by block; every proved and decoded block is given to `take`."""
    for block in file.blocks:
        try:
            stored = store.get(key, block.offset, block.size)
            wrong = blocks.damage(block, stored)
            if wrong is None:
                take(block, blocks.decode(block, stored))
        except MementumError as error:
            return [damage_of(key, error)]
        if wrong is not None:
            return [Damage(key=key, what=wrong)]
    return []


def _ignore(block: Block, raw: Buffer) -> None:
    """Proving a block is all that a deep verification wants of it."""


def _sizes(store: Store, folder: str, manifest: Manifest) -> list[Damage]:
    try:
        found = {stat.key.removeprefix(f"{folder}/"): stat.size for stat in store.list(f"{folder}/")}
    except MementumError as error:
        return [damage_of(folder, error)]
    damage: list[Damage] = []
    for file in manifest.files:
        size = found.get(file.name)
        if size is None:
            damage.append(Damage(key=f"{folder}/{file.name}", what="it is missing"))
        elif size != file.size:
            damage.append(Damage(key=f"{folder}/{file.name}", what=f"it should have {file.size} bytes and has {size}"))
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
    in_index = {file.name: file.size for file in proof.files}
    in_manifest = {file.name: file.size for file in manifest.files if file.digest is None}
    if in_index == in_manifest:
        return []
    names = ", ".join(
        sorted(name for name in in_index.keys() | in_manifest.keys() if in_index.get(name) != in_manifest.get(name))
    )
    return [Damage(key=_key(folder, manifest), what=f"manifest and index do not agree on {names}")]


def _key(folder: str, manifest: Manifest) -> str:
    return f"{folder}/{generations.manifest_name(manifest.generation)}"
