"""Settling: a checkpoint that landed raw is compressed, as its next generation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

from mementum import basing
from mementum.catalog.catalog import Catalog
from mementum.clock import Clock
from mementum.errors import UnknownFormat
from mementum.events import Emit, Settled
from mementum.execute.compress import GaveUp, Pause, is_raw
from mementum.execute.transfer import NotWhole
from mementum.format import generations
from mementum.format.codec import is_delta
from mementum.format.levels import OPTIMIZER, level_of
from mementum.recoding import Recoded
from mementum.records import DataFile, Entry, Index, Manifest, StoredFile, StoredTensor
from mementum.recover.verify import INDEX
from mementum.rewriting import Rewriting, Unsettled, rewrite
from mementum.storage.store import Store


def settle(
    entry: Entry,
    *,
    home: str,
    store: Store,
    catalog: Catalog,
    codec: str,
    emit: Emit,
    require_newest: Callable[[], None],
    clock: Clock,
    pause: Pause,
    turn: AbstractContextManager[object] | None = None,
) -> Manifest | Unsettled:
    """Compress it, in the order of `rewrite`, which says too what `turn` is and what becomes of errors."""
    began_s = clock.monotonic()
    written = _Writing(entry, codec, pause)
    done = rewrite(
        entry,
        lambda work, proof: written.parts(work, proof, catalog.entries(home) if is_delta(codec) else ()),
        doing="compressing",
        home=home,
        store=store,
        catalog=catalog,
        emit=emit,
        require_newest=require_newest,
        turn=turn,
    )
    if isinstance(done, Unsettled):
        return done
    after, duration_s = done.after, clock.monotonic() - began_s
    emit(
        Settled(
            id=after.id,
            step=after.step,
            size_before=done.before.size,
            size=after.size,
            duration_s=duration_s,
            base=written.base,
            why_no_base=written.why_no_base if written.base is None else None,
        )
    )
    return after


class _Writing:
    """Writes the files of optimizer state anew. Weights stay a standard file, and context and index are small."""

    def __init__(self, entry: Entry, codec: str, pause: Pause) -> None:
        self.base: str | None = None  # the checkpoint that some were coded against
        self.why_no_base: str | None = None
        self._entry, self._codec, self._pause = entry, codec, pause

    def parts(self, work: Rewriting, proof: Index, others: Sequence[Entry]) -> Manifest:
        """The next generation's manifest, all of whose files are durable."""
        made: dict[str, DataFile] = {}
        bases: dict[str, DataFile] = {}
        for file in proof.files:
            if level_of(file.name) == OPTIMIZER and is_raw(file):
                base = self._base(work, proof, file, others)
                made[file.name] = self._write(work, proof, file, base)
                if base is not None and made[file.name].base is not None:
                    bases[base.key] = base.file
                    self.base = base.checkpoint
        if not made:
            raise GaveUp("nothing of it is raw that could be compressed")
        tensors = tuple(
            replace(tensor, file=made[tensor.file].name) if tensor.file in made else tensor for tensor in proof.tensors
        )
        files = tuple(made.get(file.name, file) for file in proof.files)
        counted = tuple(bases.values())
        small = work.put_index(Index(rank=proof.rank, files=files, tensors=tensors, bases=(*proof.bases, *counted)))
        stored = {old: StoredFile(name=new.name, size=new.size) for old, new in made.items()}
        return replace(
            work.before,
            generation=work.generation,
            files=(
                *(small if INDEX.fullmatch(file.name) else stored.get(file.name, file) for file in work.before.files),
                *(StoredFile(name=base.name, size=base.size, folder=base.folder) for base in counted),
            ),
        )

    def _write(self, work: Rewriting, proof: Index, file: DataFile, base: basing.Whole | None) -> DataFile:
        name, tensors = generations.part_name(file.name, work.generation), _tensors(proof, file)
        write = partial(
            Recoded,
            file,
            tensors,
            (),
            source=work.store,
            folder=work.folder,
            codec=self._codec,
            pause=self._pause,
            smaller=True,
        )
        try:
            made = _put(work, name, write(base=base))
        except UnknownFormat as error:  # of the base, or of the file itself: then it is raised once more
            if base is None:
                raise
            made, self.why_no_base = _put(work, name, write()), error.message
        work.unnamed.append(name)
        return made

    def _base(self, work: Rewriting, proof: Index, file: DataFile, others: Sequence[Entry]) -> basing.Whole | None:
        """What it is coded against, if that pays."""
        if not is_delta(self._codec):
            return None
        wanted = basing.Wanted(entry=self._entry, proof=proof, file=file, codec=self._codec, source=work.store)
        found = basing.choose(wanted, others, work.store, self._pause)
        if isinstance(found, str):
            self.why_no_base = found
            return None
        return found


def _put(work: Rewriting, name: str, chunks: Recoded) -> DataFile:
    try:
        return chunks.file(name, work.store.put(f"{work.folder}/{name}", chunks).size)
    except NotWhole as found:
        raise UnknownFormat(str(found)) from found


def _tensors(proof: Index, file: DataFile) -> tuple[StoredTensor, ...]:
    return tuple(tensor for tensor in proof.tensors if tensor.file == file.name)
