"""Withering: levels of an old checkpoint are dropped, by a next generation that names fewer files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from mementum.catalog.catalog import Catalog
from mementum.events import Emit, Withered
from mementum.execute.compress import GaveUp
from mementum.format import levels
from mementum.format.generations import key_of
from mementum.records import Entry, Index, Manifest, StoredFile
from mementum.recover.verify import CONTEXT, INDEX
from mementum.rewriting import Rewriting, Unsettled, proved, rewrite
from mementum.storage.store import Store

NOTHING = "it has nothing of what would be dropped"  # so it stays for good: trying again finds the same


def wither(
    entry: Entry,
    left: Sequence[int],
    *,
    reason: str,
    home: str,
    store: Store,
    catalog: Catalog,
    emit: Emit,
    require_newest: Callable[[], None],
    still: Callable[[], None] = lambda: None,
) -> Manifest | Unsettled:
    """Drop all levels of it but those in `left`, in the order of `rewrite`. It counts as less afterwards: nothing takes
    it for exact. Whoever calls has seen to it that it need not stay whole, and that nobody else names its files."""
    done = rewrite(
        entry,
        partial(_write, tuple(left)),
        doing="ageing",
        home=home,
        store=store,
        catalog=catalog,
        emit=emit,
        require_newest=require_newest,
        still=still,
    )
    if isinstance(done, Unsettled):
        return done
    before, after = done.before, done.after
    emit(
        Withered(
            id=after.id,
            step=after.step,
            levels=after.levels,
            size_before=before.size,
            size=after.size,
            reason=reason,
        )
    )
    return after


def _write(wanted: tuple[int, ...], work: Rewriting, proof: Index) -> Manifest:
    """The next generation's index and context, without what is dropped, and its manifest."""
    before = work.before
    left = tuple(level for level in before.levels if level in wanted)
    kept = levels.index_left(proof, left)
    if kept.files == proof.files and (levels.CONTEXT in left or levels.CONTEXT not in before.levels):
        raise GaveUp(NOTHING)
    named = {key_of(work.folder, file) for file in (*kept.files, *kept.bases)}
    files: list[StoredFile] = []
    for file in before.files:
        if INDEX.fullmatch(file.name):
            files.append(work.put_index(kept))
        elif CONTEXT.fullmatch(file.name):
            files.append(work.put_small(file.name, levels.context_left(proved(work, file), proof, left, file.name)))
        elif file.digest is not None or key_of(work.folder, file) in named:
            files.append(file)
    return replace(
        before,
        generation=work.generation,
        granularity=levels.granularity_left(before.granularity, left),
        levels=left,
        files=tuple(files),
    )
