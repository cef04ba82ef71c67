"""The removal of one checkpoint, for tests of what is left after it."""

from __future__ import annotations

from mementum.execute.remove import drop, unlist
from mementum.records import Manifest
from mementum.storage.store import Store


def remove(manifest: Manifest, store: Store, folder: str) -> str | None:
    """What pruning does with one checkpoint whose files nobody else names; why not, or None."""
    parts = unlist(manifest, store, folder)
    if isinstance(parts, str):
        return parts
    drop(store, folder, parts, frozenset())
    return None
