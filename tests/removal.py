"""The removal of one checkpoint, for tests of what is left after it."""

from __future__ import annotations

from mementum.execute.remove import drop, unlist
from mementum.records import Manifest
from mementum.storage.store import Store


def remove(manifest: Manifest, store: Store, folder: str) -> str | None:
    """What pruning does with one checkpoint whose files nobody else names; why not, or None."""
    unlisted = unlist(manifest, store, folder)
    if isinstance(unlisted, str):
        return unlisted
    drop(store, folder, unlisted.parts, frozenset())
    return None
