"""Pruning: the order of durable effects when checkpoints are taken away, told once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mementum.catalog.catalog import Catalog
from mementum.catalog.lately import Lately
from mementum.decide.protection import protected
from mementum.errors import AccessRefused, CheckpointError, StoreError, Unreachable
from mementum.events import Emit, Failed, PhaseBegan, PhaseEnded, Removed, Swept
from mementum.execute.remove import (
    Unlisted,
    clear,
    clear_outdated,
    drop,
    needed_elsewhere,
    orphans,
    outdated,
    refusal,
    unlist,
)
from mementum.format.generations import manifest_name, parse
from mementum.records import Entry, Manifest, Verdict, record
from mementum.recover.verify import read_manifest
from mementum.storage.store import Store

# Checkpoints whose manifests go before their files do. Manifests of those that stay are looked through once for so
# many; what a kill leaves of them is so many folders to sweep.
TOGETHER = 64
UNKNOWN = (
    "a newer mementum wrote a checkpoint here, and which files that needs cannot be known: a sweep by it takes them"
)
WITHOUT_MANIFEST = "the files, of which no manifest is left: a sweep takes them"
Stays = Callable[[], Mapping[str, str]]  # reasons by id, of what must stay after all, by what is known now


@record
class _Gone:
    """A checkpoint that is not listed any more, and whose files are still there."""

    entry: Entry
    verdict: Verdict
    unlisted: Unlisted


def must_stay(lately: Lately, entries: Sequence[Entry]) -> dict[str, str]:
    """Reasons by id, of what nothing may take by now, whatever was judged before: for `stays` of `prune`."""
    by_now = lately.worse(entries)
    return {**({} if by_now is None else protected(by_now)), **lately.stays()}


def prune(
    verdicts: Sequence[Verdict],
    entries: Sequence[Entry],
    *,
    home: str,
    store: Store,
    catalog: Catalog,
    emit: Emit,
    stays: Stays = dict,
    about_to: Callable[[Verdict], None] = lambda verdict: None,
) -> dict[str, str]:
    """Remove what the verdicts do not keep, oldest first: catalog, manifest, the rest. Reasons by id, of what is still
    there nevertheless.

    Files that another checkpoint names stay, whatever the verdicts say. That is looked for when the manifests are gone:
    who makes a checkpoint that names files of another looks for that one's manifest when its own is there.

    `stays` is asked before each, and once more when its manifest is gone: who pins a checkpoint looks, when his fact is
    there, for the manifest, which is put back for him. `about_to` is called before the first effect of each.

    One that cannot be removed does not keep the others from going, and stands in the catalog again. Where the place as
    a whole does not answer, or the catalog refuses, StoreError: what is not listed any more by then has gone."""
    kept = {verdict.id for verdict in verdicts if verdict.keep}  # a copy of a folder has the id of its original
    dropped = {verdict.id: verdict for verdict in verdicts if verdict.id not in kept}
    doomed = [entry for entry in sorted(entries, key=lambda entry: entry.order) if entry.manifest.id in dropped]
    # On a disk of ours reading manifests is cheaper than comparing them; elsewhere each is a request.
    far = any(store.locate(_key(entry)) is None for entry in doomed[:1])
    known = {_key(entry): entry.manifest for entry in entries} if far else {}
    pruning = _Pruning(home, store, catalog, known, emit, stays)
    stayed: dict[str, str] = {}
    for first in range(0, len(doomed), TOGETHER):
        gone: list[_Gone] = []
        try:
            for entry in doomed[first : first + TOGETHER]:
                verdict = dropped[entry.manifest.id]
                why = stays().get(verdict.id)
                if why is None:
                    about_to(verdict)
                    found = pruning.unlist(entry)
                    if isinstance(found, Unlisted):
                        gone.append(_Gone(entry=entry, verdict=verdict, unlisted=found))
                        continue
                    why = found
                stayed[verdict.id] = why
        except StoreError:
            pruning.finish(gone)
            raise
        stayed |= pruning.finish(gone)
    return stayed


class _Pruning:
    """One checkpoint after the other."""

    def __init__(
        self, home: str, store: Store, catalog: Catalog, known: Mapping[str, Manifest], emit: Emit, stays: Stays
    ) -> None:
        self._home, self._store, self._catalog, self._known = home, store, catalog, known
        self._emit, self._stays = emit, stays

    def unlist(self, entry: Entry) -> Unlisted | str:
        """Take it out of the catalog, then its manifests away; or why it is still there, which is told."""
        id = entry.manifest.id
        self._emit(PhaseBegan(phase="remove", id=id))
        try:
            found = self._unlist(entry)
        except StoreError:
            self._emit(PhaseEnded(phase="remove", id=id))
            raise
        if isinstance(found, str):
            self._emit(PhaseEnded(phase="remove", id=id))
            self._emit(Failed(what=f"removing {id}", error=found, kept="all that lies in its folder"))
        return found

    def _unlist(self, entry: Entry) -> Unlisted | str:
        try:
            wrong = refusal(entry.manifest, self._store, entry.folder)
        except (Unreachable, AccessRefused):
            raise
        except StoreError as error:
            wrong = error.message
        if wrong is not None:
            return wrong
        self._catalog.forget(self._home, entry.folder)
        try:
            return unlist(entry.manifest, self._store, entry.folder)  # it looks again, right before it deletes
        except StoreError as error:
            self._enter_again(entry)
            if isinstance(error, Unreachable | AccessRefused):
                raise
            return error.message

    def _enter_again(self, entry: Entry) -> None:
        """In whatever generation it is there."""
        try:
            found = read_manifest(self._store, entry.folder)
        except StoreError:  # a refresh will tell
            return
        if isinstance(found, Manifest):
            self._catalog.add(self._home, found, entry.folder)

    def finish(self, gone: Sequence[_Gone]) -> dict[str, str]:
        """The files of what is not listed any more. Reasons by id, of what somebody has said meanwhile must stay."""
        stayed: dict[str, str] = {}
        needed: frozenset[str] | None = None
        why = UNKNOWN
        if gone:
            try:
                self._put_back(gone, stayed)
                needed = needed_elsewhere(self._store, self._known)
            except StoreError as error:
                why = error.message
            if needed is None:
                self._emit(Failed(what="removing files", error=why, kept=WITHOUT_MANIFEST))
        for one in gone:
            entry = one.entry
            if one.verdict.id not in stayed and needed is not None:
                self._drop(one, needed)
            self._emit(PhaseEnded(phase="remove", id=entry.manifest.id))
            if one.verdict.id not in stayed:
                self._emit(Removed(id=entry.manifest.id, step=entry.manifest.step, reason=one.verdict.reason))
        return stayed

    def _put_back(self, gone: Sequence[_Gone], stayed: dict[str, str]) -> None:
        """`stayed` gets those that are back, also where others cannot be."""
        late = self._stays()
        failed: StoreError | None = None
        for one in gone:
            why = late.get(one.verdict.id)
            try:
                if why is not None and self._is_back(one.entry.folder, one.unlisted):
                    self._enter_again(one.entry)
                    stayed[one.verdict.id] = why
            except StoreError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def _is_back(self, folder: str, unlisted: Unlisted) -> bool:
        """Put the manifest back whose files are all there. Of two, whoever rewrote it may have withdrawn the newer, or
        removed what the older named."""
        newest = () if unlisted.name is None or unlisted.text is None else ((unlisted.name, unlisted.text),)
        for name, text in (*newest, *unlisted.older):
            key = f"{folder}/{name}"
            if self._has_all(folder, text, key):
                self._store.put(key, [text])
                if self._has_all(folder, text, key):
                    return True
                self._store.delete(key)
        return False

    def _has_all(self, folder: str, text: bytes, key: str) -> bool:
        try:
            files = parse(text, key).files
        except CheckpointError:
            return False
        sizes = {stat.key: stat.size for stat in self._store.list(f"{folder}/")}
        return all(sizes.get(f"{folder}/{file.name}") == file.size for file in files if file.folder is None)

    def _drop(self, one: _Gone, needed: frozenset[str]) -> None:
        try:
            drop(self._store, one.entry.folder, one.unlisted.parts, needed)
        except StoreError as error:
            self._emit(Failed(what=f"removing files of {one.verdict.id}", error=error.message, kept=WITHOUT_MANIFEST))


def _key(entry: Entry) -> str:
    return f"{entry.folder}/{manifest_name(entry.manifest.generation)}"


def sweep(store: Store, *, emit: Emit) -> tuple[str, ...]:
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
