"""Pruning: the order of durable effects when checkpoints are taken away, told once."""

from __future__ import annotations

from collections.abc import Sequence

from mementum.catalog.catalog import Catalog
from mementum.events import Emit, Failed, PhaseBegan, PhaseEnded, Removed, Swept
from mementum.execute.remove import clear, clear_outdated, orphans, outdated, refusal, remove
from mementum.records import Entry, Verdict
from mementum.storage.store import Home, Store


def prune(
    verdicts: Sequence[Verdict], entries: Sequence[Entry], *, home: str, store: Store, catalog: Catalog, emit: Emit
) -> None:
    """Remove what the verdicts do not keep, oldest first: catalog, manifest, the rest."""
    kept = {verdict.id for verdict in verdicts if verdict.keep}  # a copy of a folder has the id of its original
    dropped = {verdict.id: verdict for verdict in verdicts if verdict.id not in kept}
    for entry in sorted(entries, key=lambda entry: entry.order):
        verdict = dropped.get(entry.manifest.id)
        if verdict is None:
            continue
        emit(PhaseBegan(phase="remove", id=verdict.id))
        wrong = refusal(entry.manifest, store, entry.folder)
        if wrong is None:
            catalog.forget(home, entry.folder)
            wrong = remove(entry.manifest, store, entry.folder)  # it looks again, right before it deletes
        emit(PhaseEnded(phase="remove", id=verdict.id))
        if wrong is not None:
            emit(Failed(what=f"removing {verdict.id}", error=wrong, kept="all that lies in its folder"))
            continue
        emit(Removed(id=verdict.id, step=entry.manifest.step, reason=verdict.reason))


def sweep(store: Home, *, emit: Emit) -> tuple[str, ...]:
    """Remove what dead attempts left half done: unfinished puts, parts that no manifest names, and what a compression
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
