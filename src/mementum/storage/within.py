"""The part of a store below a prefix, as a store: a task's home in a tier."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from mementum.errors import KeyMissing, KeyTaken
from mementum.storage.keys import check_key, check_prefix
from mementum.storage.store import Buffer, Stat, Store


class Within:
    """A `Store` of the objects of `inner` whose keys begin with `prefix` and a slash, told without them.

    UsageError where the prefix is no key, or where it and a key together are too long for one.
    """

    def __init__(self, inner: Store, prefix: str) -> None:
        check_key(prefix.rstrip("/"))
        self._inner = inner
        self._prefix = prefix.rstrip("/") + "/"

    def put(self, key: str, chunks: Iterable[Buffer]) -> Stat:
        check_key(key)
        with _told(key):
            return Stat(key=key, size=self._inner.put(self._prefix + key, chunks).size)

    def get(self, key: str, start: int = 0, size: int | None = None) -> memoryview:
        check_key(key)
        with _told(key):
            return self._inner.get(self._prefix + key, start, size)

    def list(self, prefix: str = "") -> Iterator[Stat]:
        for stat in self._inner.list(self._prefix + prefix):
            yield Stat(key=stat.key.removeprefix(self._prefix), size=stat.size)

    def folders(self, prefix: str = "") -> tuple[str, ...]:
        check_prefix(prefix)
        return self._inner.folders(self._prefix + prefix)

    def replace(self, key: str, chunks: Iterable[Buffer]) -> Stat:
        check_key(key)
        with _told(key):
            return Stat(key=key, size=self._inner.replace(self._prefix + key, chunks).size)

    def delete(self, key: str) -> None:
        check_key(key)
        self._inner.delete(self._prefix + key)

    def locate(self, key: str) -> Path | None:
        check_key(key)
        return self._inner.locate(self._prefix + key)

    def sweep(self) -> tuple[str, ...]:
        """All of the store is swept, since what nobody is writing any more may go anywhere; ours are told."""
        swept = self._inner.sweep()
        return tuple(name.removeprefix(self._prefix) for name in swept if name.startswith(self._prefix))


@contextlib.contextmanager
def _told(key: str) -> Iterator[None]:
    """The caller knows the key without the prefix."""
    try:
        yield
    except KeyTaken as error:
        raise KeyTaken(key) from error
    except KeyMissing as error:
        raise KeyMissing(key) from error
