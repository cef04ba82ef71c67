"""Pruning: the order of durable effects when checkpoints are taken away, told once."""

from __future__ import annotations

from collections.abc import Sequence

from mementum.catalog.catalog import Catalog
from mementum.events import Emit, Failed, PhaseBegan, PhaseEnded, Removed, Swept
from mementum.execute.remove import (
    clear,
    clear_outdated,
    drop,
    needed_elsewhere,
    orphans,
    outdated,
    refusal,
    unlist,
)
from mementum.format.generations import manifest_name
from mementum.records import Entry, Verdict
from mementum.storage.store import Home, Store

# Checkpoints whose manifests go before their files do. Manifests of those that stay are looked through once for so
# many; what a kill leaves of them is so many folders to sweep.
TOGETHER = 64
UNKNOWN = (
    "a newer mementum wrote a checkpoint here, and which files that needs cannot be known: a sweep by it takes them"
)


def prune(
    verdicts: Sequence[Verdict], entries: Sequence[Entry], *, home: str, store: Store, catalog: Catalog, emit: Emit
) -> None:
    """Remove what the verdicts do not keep, oldest first: catalog, manifest, the rest.

    Files that another checkpoint names stay, whatever the verdicts say. That is looked for when the manifests are gone:
    who makes a checkpoint that names files of another looks for that one's manifest when its own is there."""
    kept = {verdict.id for verdict in verdicts if verdict.keep}  # a copy of a folder has the id of its original
    dropped = {verdict.id: verdict for verdict in verdicts if verdict.id not in kept}
    doomed = [entry for entry in sorted(entries, key=lambda entry: entry.order) if entry.manifest.id in dropped]
    # On a disk of ours reading manifests is cheaper than comparing them; elsewhere each is a request.
    far = any(store.locate(_key(entry)) is None for entry in doomed[:1])
    known = {_key(entry): entry.manifest for entry in entries} if far else {}
    for first in range(0, len(doomed), TOGETHER):
        gone: list[tuple[Entry, tuple[str, ...]]] = []
        for entry in doomed[first : first + TOGETHER]:
            id = entry.manifest.id
            emit(PhaseBegan(phase="remove", id=id))
            parts = _unlist(entry, home=home, store=store, catalog=catalog)
            if isinstance(parts, str):
                emit(PhaseEnded(phase="remove", id=id))
                emit(Failed(what=f"removing {id}", error=parts, kept="all that lies in its folder"))
            else:
                gone.append((entry, parts))
        needed = needed_elsewhere(store, known) if gone else frozenset[str]()
        if needed is None:
            emit(Failed(what="removing files", error=UNKNOWN, kept="the files, of which no manifest is left"))
        for entry, parts in gone:
            if needed is not None:
                drop(store, entry.folder, parts, needed)
            emit(PhaseEnded(phase="remove", id=entry.manifest.id))
            emit(Removed(id=entry.manifest.id, step=entry.manifest.step, reason=dropped[entry.manifest.id].reason))


def _key(entry: Entry) -> str:
    return f"{entry.folder}/{manifest_name(entry.manifest.generation)}"


def _unlist(entry: Entry, *, home: str, store: Store, catalog: Catalog) -> tuple[str, ...] | str:
    wrong = refusal(entry.manifest, store, entry.folder)
    if wrong is not None:
        return wrong
    catalog.forget(home, entry.folder)
    return unlist(entry.manifest, store, entry.folder)  # it looks again, right before it deletes


def sweep(store: Home, *, emit: Emit) -> tuple[str, ...]:
    """Remove what dead attempts left half done: unfinished puts, parts that no manifest names, and what a rewriting
    that was cut short left beside the manifest that holds.

    Only the holder of the task may call it, and not while a save is in flight."""
    emit(PhaseBegan(phase="sweep"))
    unfinished = store.sweep()
    unnamed = orphans(store)
    clear(store, unnamed)
    old = outdated(store)
    clear_outdated(store, old)
    emit(PhaseEnded(phase="sweep"))
    swept = (*unfinished, *unnamed, *old)
    if swept:
        emit(Swept(keys=swept))
    return swept
