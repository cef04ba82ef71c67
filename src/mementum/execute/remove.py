"""Remove: takes a checkpoint away, manifest first, and finds the parts that no manifest names."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mementum.format import manifest as manifests
from mementum.records import Manifest
from mementum.storage.store import Home, Store

# What we write into a checkpoint's folder. Anything else there is somebody's, and is never touched.
OURS = re.compile(r"([^/]+\.safetensors|[^/]+\.blocks|index-\d+\.json|context-\d+\.json)")
FOLDER = re.compile(r"step_\d{10,}(-\d+)?")


def remove(manifest: Manifest, store: Store, folder: str) -> None:
    """Manifest, then the rest: whatever line we die on, nothing that is listed lacks a part."""
    store.delete(f"{folder}/{manifests.NAME}")
    for file in manifest.files:
        store.delete(f"{folder}/{file.name}")


def orphans(store: Home) -> tuple[str, ...]:
    """Keys of parts in folders without a manifest: what saves and removals that were killed left behind.

    A manifest that somebody made a link or a folder is no object, and its parts are no orphans: we never leave that.
    Only the holder of the task may delete them: to anybody else a save in progress looks the same."""
    named: set[str] = set()
    parts: list[str] = []
    for stat in store.list("step_"):
        folder, _, name = stat.key.partition("/")
        if name.startswith("meta") and name.endswith(".json"):
            named.add(folder)
        elif FOLDER.fullmatch(folder) and OURS.fullmatch(name):
            parts.append(stat.key)
    folders = {key.partition("/")[0] for key in parts} - named
    unnamed = {folder for folder in folders if not store.taken(f"{folder}/{manifests.NAME}")}
    return tuple(key for key in parts if key.partition("/")[0] in unnamed)


def clear(store: Store, keys: Sequence[str]) -> None:
    """Delete orphans. Their manifests first, though they are gone: who removed one may have died before the fsync, and
    a delete is durable even where nothing is left to delete. Else a power cut could bring back a manifest alone."""
    for folder in dict.fromkeys(key.partition("/")[0] for key in keys):
        store.delete(f"{folder}/{manifests.NAME}")
    for key in keys:
        store.delete(key)


def discard(store: Store, folder: str) -> None:
    """Take away what a failed save has left in its folder: the manifest first, though its put has failed, since its
    name may be on the disk."""
    store.delete(f"{folder}/{manifests.NAME}")
    for stat in tuple(store.list(f"{folder}/")):
        store.delete(stat.key)
