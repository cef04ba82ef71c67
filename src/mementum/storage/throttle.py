"""A store around a store that sends no more bytes a second than it is given, so that copies leave room for others."""

from __future__ import annotations

from collections.abc import Iterable

from mementum.storage.around import Around
from mementum.storage.chunks import watched
from mementum.storage.pace import Pace
from mementum.storage.store import Buffer, Stat, Store


class Throttled(Around):
    """A `Store` whose puts and replaces keep a pace, which others may share. What is read is not held up: at a start
    somebody waits for it.

    A chunk is sent at once; the next one waits. It goes around a `Retrying`, so that bytes that are sent again are
    counted again.
    """

    def __init__(self, inner: Store, pace: Pace) -> None:
        super().__init__(inner)
        self._pace = pace

    def put(self, key: str, chunks: Iterable[Buffer]) -> Stat:
        return self._inner.put(key, watched(chunks, self._take))

    def replace(self, key: str, chunks: Iterable[Buffer]) -> Stat:
        return self._inner.replace(key, watched(chunks, self._take))

    def _take(self, chunk: Buffer) -> None:
        self._pace.take(memoryview(chunk).nbytes)
