"""Generations: the names of a checkpoint's manifests and parts, which change where a part is written anew.

The first manifest is `meta.json`. One that names other files of the same checkpoint is a new generation: `meta-2.json`,
beside the `optimizer-2.blocks` and the `index-00000-2.json` that it brought. The highest that is there holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from mementum.errors import UnknownFormat
from mementum.format import manifest as manifests
from mementum.records import DataFile, Manifest, StoredFile

GENERATION_MAX = 9999  # four digits, so that a name is never mixed up with that of a rank, which has five
SUFFIX = r"(?:-([2-9]|[1-9]\d{1,3}))?"
MANIFEST = re.compile(rf"meta{SUFFIX}\.json")
PART = re.compile(rf"(.+?){SUFFIX}(\.[a-z]+)")
SMALL = r"(?:index|context)-\d{5}"  # files of one rank
REWRITTEN = re.compile(rf"(optimizer(?:-\d{{5}})?{SUFFIX}\.blocks|{SMALL}{SUFFIX}\.json)")


def key_of(folder: str, file: StoredFile | DataFile | str) -> str:
    """Where a file lies that the checkpoint in `folder` names: there, or with the checkpoint whose file it is."""
    if isinstance(file, str):
        return f"{folder}/{file}"
    return f"{folder if file.folder is None else file.folder}/{file.name}"


def manifest_name(generation: int) -> str:
    return manifests.NAME if generation == 1 else f"meta-{generation}.json"


def generation_of(name: str) -> int | None:
    """The generation of a manifest by its file's name; None for any other file."""
    match = MANIFEST.fullmatch(name)
    return None if match is None else int(match[1] or 1)


def part_name(name: str, generation: int) -> str:
    """The name that a part has where this generation brings it anew."""
    match = PART.fullmatch(name)
    assert match is not None, name
    return match[1] + (f"-{generation}" if generation > 1 else "") + match[3]


def brought_by(name: str) -> int:
    """The generation that brought a part."""
    match = PART.fullmatch(name)
    return 1 if match is None else int(match[2] or 1)


def standing(names: Iterable[str]) -> tuple[str, ...]:
    """The manifests among the names of a folder, lowest generation first."""
    found = ((generation, name) for name in names if (generation := generation_of(name)) is not None)
    return tuple(name for _, name in sorted(found))


def newest(keys: Iterable[str]) -> dict[str, str]:
    """The key of the manifest that holds in each folder that has one."""
    found: dict[str, tuple[int, str]] = {}
    for key in keys:
        folder, _, name = key.partition("/")
        generation = generation_of(name)
        if generation is not None and generation > found.get(folder, (0, ""))[0]:
            found[folder] = (generation, key)
    return {folder: key for folder, (_, key) in found.items()}


def possible(names: Iterable[str]) -> tuple[str, ...]:
    """The manifests that parts of these names may belong to, whether they are there or not."""
    return tuple(manifest_name(each) for each in sorted({1, *(brought_by(name) for name in names)}))


def parse(data: bytes | memoryview, key: str) -> Manifest:
    """Read and prove the manifest that lies at `key`. UnknownFormat also if that is not the name of its generation."""
    manifest = manifests.parse(data, key)
    if generation_of(key.rpartition("/")[2]) != manifest.generation:
        raise UnknownFormat(f"{key} is generation {manifest.generation} of its manifest, under another one's name")
    return manifest
