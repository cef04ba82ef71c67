"""Saving: the order of durable effects when a checkpoint is made, told once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mementum.catalog.catalog import Catalog
from mementum.errors import KeyTaken, MementumError, StoreError, Superseded
from mementum.events import Emit, Failed, PhaseBegan, PhaseEnded
from mementum.execute.commit import commit, require_owners
from mementum.execute.remove import discard
from mementum.execute.snapshot import Snapshot
from mementum.execute.stills import Stills
from mementum.execute.write import folder_for, write_parts
from mementum.records import Manifest, StoredFile
from mementum.storage.pace import Pace
from mementum.storage.store import Home, Store

Describe = Callable[[Snapshot, Sequence[StoredFile]], Manifest]
Look = Callable[[], None]


def _sole_writer() -> None:
    """The look of a writer that nobody can supersede."""


def save_checkpoint(
    snapshot: Snapshot,
    *,
    home: str,
    store: Home,
    catalog: Catalog,
    describe: Describe,
    emit: Emit,
    require_newest: Look = _sole_writer,
    stills: Stills | None = None,
    pace: Pace | None = None,
) -> Manifest:
    """Parts, then a look for a later attempt, then manifest, then catalog: whatever line we die on, what is listed is
    whole.

    A save that fails takes its parts away again, as far as the disk still answers, and raises. Superseded from
    `require_newest` leaves them to the later attempt's sweep: it may be writing in this very folder."""
    folder = folder_for(store, snapshot.step)
    try:
        emit(PhaseBegan(phase="write", id=snapshot.id))
        files = write_parts(snapshot, store, folder, stills=stills, pace=pace)
        emit(PhaseEnded(phase="write", id=snapshot.id))
        emit(PhaseBegan(phase="commit", id=snapshot.id))
        require_newest()
        manifest = commit(describe(snapshot, files), store, folder)  # from here on it exists
        require_owners(manifest, store)
        emit(PhaseEnded(phase="commit", id=snapshot.id))
    except (Superseded, KeyTaken):  # somebody else writes here, and what lies in the folder may be theirs
        raise
    except (
        MementumError,
        TypeError,
        ValueError,
        ArithmeticError,
    ):  # the latter from a manifest that a user's policy has spoiled
        _discard(store, folder, require_newest)
        raise
    if stills is not None:
        stills.committed()
    try:
        catalog.add(home, manifest, folder)
    except StoreError as error:  # a cache: a rebuild will find the checkpoint
        emit(Failed(what=f"entering {manifest.id} in the catalog", error=error.message, kept="the checkpoint"))
    return manifest


def _discard(store: Store, folder: str, require_newest: Look) -> None:
    try:
        require_newest()
        discard(store, folder)
    except (MementumError, OSError):
        return  # the error that is on its way says what is wrong with this disk; the next sweep takes the rest
