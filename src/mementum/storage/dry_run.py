"""A store around a store that changes nothing in it, and remembers what would have been changed."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from mementum.errors import KeyMissing, KeyTaken, StoreError
from mementum.records import record
from mementum.storage.chunks import flat
from mementum.storage.keys import check_key, check_prefix, check_range
from mementum.storage.store import Buffer, Stat, Store, size_of

KEPT_BYTES_MAX = 64 << 20  # manifests, indexes and journals of a large plan; data is counted, and its memory given back


@record
class Planned:
    """What would have been done to an object, and the bytes that it would have taken, or given back."""

    what: Literal["put", "replace", "delete"]
    key: str
    size: int


class DryRun:
    """A `Store` whose reads go through to `inner`, and whose changes are seen by its own readers alone.

    What is put can be got again up to 64 MiB in all; beyond that a get of it is a StoreError. `planned` tells all
    changes in order. Nothing is swept.
    """

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self._turn = threading.Lock()
        self._changed: dict[str, int | None] = {}  # sizes of what would be there; None: it would be gone
        self._bytes: dict[str, bytes] = {}
        self._kept = 0
        self._planned: list[Planned] = []

    @property
    def planned(self) -> tuple[Planned, ...]:
        with self._turn:
            return tuple(self._planned)

    def put(self, key: str, chunks: Iterable[Buffer]) -> Stat:
        check_key(key)
        if self._size(key) is not None:
            raise KeyTaken(key)
        return self._write("put", key, chunks)

    def replace(self, key: str, chunks: Iterable[Buffer]) -> Stat:
        check_key(key)
        return self._write("replace", key, chunks)

    def _write(self, what: Literal["put", "replace"], key: str, chunks: Iterable[Buffer]) -> Stat:
        size, data = 0, bytearray()
        for chunk in chunks:
            size += memoryview(chunk).nbytes
            if self._kept + size <= KEPT_BYTES_MAX:
                data += flat(chunk)
        with self._turn:
            if what == "put" and self._changed.get(key) is not None:  # another thread's, meanwhile
                raise KeyTaken(key)
            self._drop(key)
            if len(data) == size:
                self._bytes[key] = bytes(data)
                self._kept += size
            self._changed[key] = size
            self._planned.append(Planned(what=what, key=key, size=size))
        return Stat(key=key, size=size)

    def get(self, key: str, start: int = 0, size: int | None = None) -> memoryview:
        check_key(key)
        check_range(key, start, size)
        with self._turn:
            if key not in self._changed:
                data = None
            elif self._changed[key] is None:
                raise KeyMissing(key)
            elif key not in self._bytes:
                raise StoreError(
                    key,
                    f"{key} would be put, and is too large for a dry run to remember",
                    kept="all that is there: a dry run writes nothing",
                )
            else:
                data = memoryview(self._bytes[key])
        if data is None:
            return self._inner.get(key, start, size)
        return data[start : None if size is None else start + size]

    def list(self, prefix: str = "") -> Iterator[Stat]:
        with self._turn:
            changed = dict(self._changed)
        there = (stat for stat in self._inner.list(prefix) if stat.key not in changed)
        new = (
            Stat(key=key, size=size)
            for key, size in sorted(changed.items())
            if size is not None and key.startswith(prefix)
        )
        yield from heapq.merge(there, new, key=lambda stat: stat.key)

    def folders(self, prefix: str = "") -> tuple[str, ...]:
        check_prefix(prefix)
        with self._turn:
            there = [key for key, size in self._changed.items() if size is not None and key.startswith(prefix)]
        parted = (key.removeprefix(prefix).partition("/") for key in there)
        new = {name for name, slash, _ in parted if slash}
        return tuple(sorted(new.union(self._inner.folders(prefix))))

    def delete(self, key: str) -> None:
        check_key(key)
        size = self._size(key)
        if size is not None:
            with self._turn:
                self._drop(key)
                self._changed[key] = None
                self._planned.append(Planned(what="delete", key=key, size=size))

    def locate(self, key: str) -> Path | None:
        check_key(key)
        with self._turn:
            if key in self._changed:
                return None
        return self._inner.locate(key)

    def sweep(self) -> tuple[str, ...]:
        return ()

    def _size(self, key: str) -> int | None:
        with self._turn:
            if key in self._changed:
                return self._changed[key]
        return size_of(self._inner, key)

    def _drop(self, key: str) -> None:
        self._kept -= len(self._bytes.pop(key, b""))
