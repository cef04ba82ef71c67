"""A store around a store that passes every call on: so that a wrapper says only what it changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from mementum.storage.store import Buffer, Stat, Store


class Around:
    """A `Store` that does what `inner` does."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner

    def put(self, key: str, chunks: Iterable[Buffer]) -> Stat:
        return self._inner.put(key, chunks)

    def get(self, key: str, start: int = 0, size: int | None = None) -> memoryview:
        return self._inner.get(key, start, size)

    def list(self, prefix: str = "") -> Iterator[Stat]:
        return self._inner.list(prefix)

    def folders(self, prefix: str = "") -> tuple[str, ...]:
        return self._inner.folders(prefix)

    def replace(self, key: str, chunks: Iterable[Buffer]) -> Stat:
        return self._inner.replace(key, chunks)

    def delete(self, key: str) -> None:
        self._inner.delete(key)

    def locate(self, key: str) -> Path | None:
        return self._inner.locate(key)

    def sweep(self) -> tuple[str, ...]:
        return self._inner.sweep()
