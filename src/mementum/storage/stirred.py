"""Stirred: a store around a store that says since when nothing has moved in a call that is under way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from mementum.clock import Clock
from mementum.storage.around import Around
from mementum.storage.store import Buffer, Stat, Store


class Motion:
    """Of all calls to one place. Any thread may look; what it sees is of the newest call."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_s: float | None = None

    @property
    def stalled_s(self) -> float:
        """For how long the place has been asked, and nothing has moved."""
        since_s = self._since_s
        return 0.0 if since_s is None else self._clock.monotonic() - since_s

    def stir(self) -> None:
        self._since_s = self._clock.monotonic()

    def rest(self) -> None:
        """It is not the place that is waited for."""
        self._since_s = None


class Stirred(Around):
    def __init__(self, inner: Store, motion: Motion) -> None:
        super().__init__(inner)
        self._motion = motion

    @contextmanager
    def _asking(self) -> Iterator[None]:
        self._motion.stir()
        try:
            yield
        finally:
            self._motion.rest()

    def _moving(self, chunks: Iterable[Buffer]) -> Iterator[Buffer]:
        source = iter(chunks)
        while True:
            self._motion.rest()
            chunk = next(source, None)
            self._motion.stir()
            if chunk is None:
                return
            yield chunk

    def put(self, key: str, chunks: Iterable[Buffer]) -> Stat:
        with self._asking():
            return super().put(key, self._moving(chunks))

    def replace(self, key: str, chunks: Iterable[Buffer]) -> Stat:
        with self._asking():
            return super().replace(key, self._moving(chunks))

    def get(self, key: str, start: int = 0, size: int | None = None) -> memoryview:
        with self._asking():
            return super().get(key, start, size)

    def list(self, prefix: str = "") -> Iterator[Stat]:
        found = iter(super().list(prefix))
        while True:
            with self._asking():
                stat = next(found, None)
            if stat is None:
                return
            yield stat

    def folders(self, prefix: str = "") -> tuple[str, ...]:
        with self._asking():
            return super().folders(prefix)

    def delete(self, key: str) -> None:
        with self._asking():
            super().delete(key)
