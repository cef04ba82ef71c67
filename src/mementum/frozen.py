"""Frozen: the files of frozen tensors that a snapshot in memory names, found and proved where they lie now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mementum.errors import UsageError
from mementum.execute.head import Still
from mementum.execute.holdings import size_of
from mementum.records import Buffer, Entry
from mementum.recover.read import read_files
from mementum.storage.store import Store


def located(still: Still, store: Store, entries: Sequence[Entry]) -> Still:
    """Where a file of frozen tensors is now: the checkpoint that had it may be removed, and others have it too."""
    folders = dict.fromkeys((still.folder, *(entry.folder for entry in reversed(entries))))
    has_it = (folder for folder in folders if size_of(store, f"{folder}/{still.file.name}") == still.file.size)
    return replace(still, folder=next(has_it, still.folder))


def read_still(still: Still, store: Store) -> memoryview:
    """A file of frozen tensors, proved."""
    out = np.empty(still.file.size, np.uint8)

    def take(number: int, begin: int, raw: Buffer) -> None:
        out[begin : begin + len(raw)] = np.frombuffer(raw, np.uint8)

    damage = read_files(store, still.folder, [still.file], take)
    if damage:
        raise UsageError(f"its frozen tensors cannot be read: {damage[0].key}: {damage[0].what}")
    return out.data


class Durable:
    """A file of frozen tensors as a raw stream: what `Stills` asks of one, told by the file itself."""

    names: tuple[tuple[str, str], ...] = ()

    def __init__(self, still: Still, store: Store) -> None:
        self._still, self._store = still, store

    def __getitem__(self, piece: slice, /) -> memoryview:
        start, stop, _ = piece.indices(self._still.file.size)
        return self._store.get(f"{self._still.folder}/{self._still.file.name}", start, stop - start)

    def digests(self) -> tuple[str, ...]:
        return tuple(block.digest for block in self._still.file.blocks)

    def changed(self) -> str | None:
        return None
