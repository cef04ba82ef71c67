"""Lodging: the folder of a store in which a copy of a checkpoint lies, has begun, or can begin."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from mementum.errors import MementumError, StoreError
from mementum.execute.compress import GaveUp
from mementum.execute.halves import clear_folder, marks
from mementum.execute.transfer import NotWhole, Owners, small
from mementum.format import generations, index
from mementum.format import manifest as manifests
from mementum.records import Damage, Manifest, record
from mementum.recover.verify import INDEX, read_manifest
from mementum.storage.store import Store

STEP = re.compile(r"(step_\d{10,19})(?:-\d+)?")
FOLDERS_MAX = 999  # checkpoints of one step in one place
FROZEN = ".frozen.safetensors"


@record
class Room:
    """Where a copy goes, and what of it lies there by name and size; `stands` where it is there."""

    folder: str
    there: Mapping[str, int]
    stands: Manifest | None = None


def find_room(target: Store, folder: str, id: str) -> Room:
    """The folder of the step in which the copy lies, or began, or can begin. Another checkpoint's half copy goes.
    GaveUp where there is none."""
    match = STEP.fullmatch(folder)
    if match is None:
        raise GaveUp(f"{folder} is not the folder of a checkpoint")
    step = match[1]
    found: dict[str, dict[str, int]] = {}
    for stat in target.list(step):
        name, _, file = stat.key.partition("/")
        if name == step or name.startswith(f"{step}-"):
            found.setdefault(name, {})[file] = stat.size
    order = [folder, *sorted(found, key=lambda name: (len(name), name))]
    for name in order:
        standing = generations.standing(found.get(name, ()))
        if standing and manifests.has_id(target.get(f"{name}/{standing[-1]}", 0, manifests.HEAD), id):
            return Room(folder=name, there=found[name], stands=_stands(target, name))
    for name in order:
        if id in marks(found.get(name, ())):
            return Room(folder=name, there=found[name])
    for name in (folder, step, *(f"{step}-{number}" for number in range(2, FOLDERS_MAX + 1))):
        there = found.get(name, {})
        if not there or (marks(there) and not generations.standing(there) and clear_folder(target, name, there)):
            return Room(folder=name, there={})
    raise GaveUp(f"there are {FOLDERS_MAX} checkpoints of {step}")


def _stands(target: Store, folder: str) -> Manifest:
    found = read_manifest(target, folder)
    if isinstance(found, Damage):
        raise GaveUp(f"its copy there is damaged ({found.key}: {found.what})")
    return found


def require_there(room: Room, manifest: Manifest) -> None:
    """GaveUp for a copy that lacks a file: it is a repair's affair, and not written over."""
    for file in manifest.files:
        if file.folder is None and room.there.get(file.name) != file.size:
            raise GaveUp(f"its copy there is damaged ({room.folder}/{file.name} is missing or cut off)")


def know_frozen(target: Store, folder: str, manifest: Manifest, owners: Owners) -> None:
    """Learn which frozen weights a checkpoint in the target has; what cannot be read is not known, and sent again."""
    try:
        for file in manifest.files:
            if INDEX.fullmatch(file.name):
                for held in index.parse(small(target, folder, file), file.name).files:
                    if held.name.endswith(FROZEN):
                        owners.know(replace(held, folder=None), held.folder or folder)
    except (NotWhole, StoreError, MementumError):
        return
