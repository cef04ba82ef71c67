"""A home around a home that remembers what error it raised, so that a fault of its disk is not taken for a tier's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from mementum.errors import StoreError
from mementum.storage.around import Around
from mementum.storage.store import Buffer, Hold, Home, Stat


class Noted(Around):
    """A `Home` that does what `home` does. `raised` is the last error of it."""

    def __init__(self, home: Home) -> None:
        super().__init__(home)
        self._home = home
        self.raised: StoreError | None = None

    def put(self, key: str, chunks: Iterable[Buffer]) -> Stat:
        with self._noting():
            return super().put(key, chunks)

    def get(self, key: str, start: int = 0, size: int | None = None) -> memoryview:
        with self._noting():
            return super().get(key, start, size)

    def list(self, prefix: str = "") -> Iterator[Stat]:
        with self._noting():
            yield from super().list(prefix)

    def append(self, key: str, data: bytes) -> None:
        with self._noting():
            self._home.append(key, data)

    def taken(self, key: str) -> bool:
        return self._home.taken(key)

    def link(self, key: str, new_key: str) -> bool:
        return self._home.link(key, new_key)

    def hold(self, key: str) -> Hold | None:
        return self._home.hold(key)

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            self.raised = error
            raise
