"""Verify: finds damage before anything is loaded. Damage is data here, never an exception."""

from __future__ import annotations

import re
from collections.abc import Callable

from mementum.errors import MementumError, StoreError, UnknownFormat
from mementum.format import blocks, context, index
from mementum.format import manifest as manifests
from mementum.records import Block, Buffer, Damage, DataFile, Index, Manifest
from mementum.storage.store import Store

INDEX = re.compile(r"index-\d{5}\.json")
CONTEXT = re.compile(r"context-\d{5}\.json")
Take = Callable[[Block, Buffer], None]


def verify(store: Store, folder: str, manifest: Manifest, *, deep: bool) -> tuple[Damage, ...]:
    """What is wrong with a checkpoint. Shallow: every file is there in its size, index and context are proved.
    Deep: every byte is read, compared with its digest, and decoded."""
    damage = list(_sizes(store, folder, manifest))
    damage += _small(store, folder, manifest)
    if not damage:
        index_file = next(file for file in manifest.files if INDEX.fullmatch(file.name))
        proof = index.parse(store.get(f"{folder}/{index_file.name}"), index_file.name)
        damage += _agreement(folder, manifest, proof)
        if deep:
            for file in proof.files:
                damage += read_blocks(store, f"{folder}/{file.name}", file, _ignore)
    return tuple(damage)


def read_manifest(store: Store, folder: str) -> Manifest | Damage:
    """The manifest of a folder as it lies there now, or what is wrong with it."""
    key = f"{folder}/{manifests.NAME}"
    try:
        return manifests.parse(store.get(key), key)
    except MementumError as error:
        return Damage(key=key, what=error.message)


def read_blocks(store: Store, key: str, file: DataFile, take: Take) -> list[Damage]:
    """Read a data file block by block; every proved and decoded block is given to `take`."""
    for block in file.blocks:
        try:
            stored = store.get(key, block.offset, block.size)
            wrong = blocks.damage(block, stored)
            if wrong is None:
                take(block, blocks.decode(block, stored))
        except (StoreError, UnknownFormat) as error:
            wrong = error.message
        except OSError as error:
            wrong = f"it cannot be read: {error.strerror or error}"
        if wrong is not None:
            return [Damage(key=key, what=wrong)]
    return []


def _ignore(block: Block, raw: Buffer) -> None:
    """Proving a block is all that a deep verification wants of it."""


def _sizes(store: Store, folder: str, manifest: Manifest) -> list[Damage]:
    try:
        found = {stat.key.rpartition("/")[2]: stat.size for stat in store.list(f"{folder}/")}
    except (OSError, StoreError) as error:
        return [Damage(key=folder, what=f"it cannot be listed: {error}")]
    damage: list[Damage] = []
    for file in manifest.files:
        size = found.get(file.name)
        if size is None:
            damage.append(Damage(key=f"{folder}/{file.name}", what="it is missing"))
        elif size != file.size:
            damage.append(Damage(key=f"{folder}/{file.name}", what=f"it should have {file.size} bytes and has {size}"))
    return damage


def _small(store: Store, folder: str, manifest: Manifest) -> list[Damage]:
    damage: list[Damage] = []
    for pattern, what in ((INDEX, "index"), (CONTEXT, "context")):
        if not any(pattern.fullmatch(file.name) for file in manifest.files):
            damage.append(Damage(key=f"{folder}/{manifests.NAME}", what=f"the manifest names no {what}"))
    for file in manifest.files:
        if file.digest is None:
            continue
        key = f"{folder}/{file.name}"
        try:
            data = store.get(key)
            if manifests.digest(data) != file.digest:
                damage.append(Damage(key=key, what="it does not match its digest"))
            elif INDEX.fullmatch(file.name):
                index.parse(data, file.name)
            elif CONTEXT.fullmatch(file.name):
                context.parse(data, file.name)
        except (StoreError, UnknownFormat) as error:
            damage.append(Damage(key=key, what=error.message))
        except OSError as error:
            damage.append(Damage(key=key, what=f"it cannot be read: {error.strerror or error}"))
    return damage


def _agreement(folder: str, manifest: Manifest, proof: Index) -> list[Damage]:
    """The data files of the manifest and those of the index are the same, in the same sizes."""
    in_index = {file.name: file.size for file in proof.files}
    in_manifest = {file.name: file.size for file in manifest.files if file.digest is None}
    if in_index == in_manifest:
        return []
    names = ", ".join(
        sorted(name for name in in_index.keys() | in_manifest.keys() if in_index.get(name) != in_manifest.get(name))
    )
    return [Damage(key=f"{folder}/{manifests.NAME}", what=f"manifest and index do not agree on {names}")]
