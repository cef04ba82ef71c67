"""Saving: the order of durable effects when a checkpoint is made, told once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mementum.catalog.catalog import Catalog
from mementum.errors import MementumError, StoreError
from mementum.events import Emit, Failed, PhaseBegan, PhaseEnded
from mementum.execute.commit import commit
from mementum.execute.remove import discard
from mementum.execute.snapshot import Snapshot
from mementum.execute.write import folder_for, write_parts
from mementum.records import Manifest, StoredFile
from mementum.storage.store import Store

Describe = Callable[[Snapshot, Sequence[StoredFile]], Manifest]


def save_checkpoint(
    snapshot: Snapshot, *, home: str, store: Store, catalog: Catalog, describe: Describe, emit: Emit
) -> Manifest:
    """Parts, then manifest, then catalog: whatever line we die on, what is listed is whole.

    A save that fails takes its parts away again, as far as the disk still answers, and raises."""
    folder = folder_for(store, snapshot.step)
    try:
        emit(PhaseBegan(phase="write", id=snapshot.id))
        files = write_parts(snapshot, store, folder)
        emit(PhaseEnded(phase="write", id=snapshot.id))
        emit(PhaseBegan(phase="commit", id=snapshot.id))
        manifest = commit(describe(snapshot, files), store, folder)  # from here on it exists
        emit(PhaseEnded(phase="commit", id=snapshot.id))
    except (MementumError, TypeError, ValueError):  # the latter from a manifest that a user's policy has spoiled
        _discard(store, folder)
        raise
    try:
        catalog.add(home, manifest, folder)
    except StoreError as error:  # a cache: a rebuild will find the checkpoint
        emit(Failed(what=f"entering {manifest.id} in the catalog", error=error.message, kept="the checkpoint"))
    return manifest


def _discard(store: Store, folder: str) -> None:
    try:
        discard(store, folder)
    except (MementumError, OSError):
        return  # the error that is on its way says what is wrong with this disk; the next sweep takes the rest
