"""A store around a store that sends no more bytes a second than it is given, so that copies leave room for others."""

from __future__ import annotations

from collections.abc import Iterable

from mementum.clock import Clock
from mementum.storage.around import Around
from mementum.storage.chunks import watched
from mementum.storage.pace import Pace
from mementum.storage.store import Buffer, Stat, Store


class Throttled(Around):
    """A `Store` whose puts and replaces share `bytes_per_s`. What was not used for a second is made up for. What is
    read is not held up: at a start somebody waits for it.

    A chunk is sent at once; the next one waits. UsageError unless the rate is above 0.
    It goes around a `Retrying`, so that bytes that are sent again are counted again.
    """

    def __init__(self, inner: Store, rate: float | Pace, clock: Clock) -> None:
        super().__init__(inner)
        self._pace = rate if isinstance(rate, Pace) else Pace(rate, clock)

    def put(self, key: str, chunks: Iterable[Buffer]) -> Stat:
        return self._inner.put(key, watched(chunks, self._take))

    def replace(self, key: str, chunks: Iterable[Buffer]) -> Stat:
        return self._inner.replace(key, watched(chunks, self._take))

    def _take(self, chunk: Buffer) -> None:
        self._pace.take(memoryview(chunk).nbytes)
