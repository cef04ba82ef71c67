"""Remove: takes a checkpoint away, manifest first, and finds the parts that no manifest names."""

from __future__ import annotations

import re

from mementum.format import manifest as manifests
from mementum.records import Manifest
from mementum.storage.store import Store

# What we write into a checkpoint's folder. Anything else there is somebody's, and is never touched.
OURS = re.compile(r"(.+\.safetensors|.+\.blocks|index-\d+\.json|context-\d+\.json)")
FOLDER = re.compile(r"step_\d{10,}(-\d+)?")


def remove(manifest: Manifest, store: Store, folder: str) -> None:
    """Manifest, then the rest: whatever line we die on, nothing that is listed lacks a part."""
    store.delete(f"{folder}/{manifests.NAME}")
    for file in manifest.files:
        store.delete(f"{folder}/{file.name}")


def orphans(store: Store) -> tuple[str, ...]:
    """Keys of parts in folders without a manifest: what saves and removals that were killed left behind.

    Only the holder of the task may delete them: to anybody else a save in progress looks the same."""
    named: set[str] = set()
    parts: list[str] = []
    for stat in store.list("step_"):
        folder, _, name = stat.key.partition("/")
        if name.startswith("meta") and name.endswith(".json"):
            named.add(folder)
        elif FOLDER.fullmatch(folder) and OURS.fullmatch(name):
            parts.append(stat.key)
    return tuple(key for key in parts if key.partition("/")[0] not in named)


def discard(store: Store, folder: str) -> None:
    """Take away what a failed save has left in its folder, manifest first."""
    keys = [stat.key for stat in store.list(f"{folder}/")]
    for key in sorted(keys, key=lambda key: not key.endswith(f"/{manifests.NAME}")):
        store.delete(key)
