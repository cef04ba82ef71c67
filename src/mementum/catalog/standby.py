"""The standby: a catalog that goes on in memory where its file turns out to be no catalog any more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from mementum.catalog.rebuild import refresh
from mementum.catalog.sql import SqlCatalog, is_no_database, open_sqlite
from mementum.errors import StoreError
from mementum.events import Emit, Note
from mementum.records import Entry, Fact, Manifest, Start
from mementum.storage.store import Store

T = TypeVar("T")


class StandbyCatalog:
    """A `Catalog` that asks the one in a file. When that is no database any more, as after somebody has written over
    it, one in memory takes its place, made of the task's folder, and what was asked is asked there. This is told once.

    A file that is locked, or a disk that is full, is no such case: there the error is raised, and the next call may
    succeed. The catalog in memory knows of one task only, that of `home` in `store`."""

    def __init__(self, catalog: SqlCatalog, *, home: str, store: Store, emit: Emit) -> None:
        self._catalog, self._home, self._store, self._emit = catalog, home, store, emit
        self._turn = threading.Lock()

    def add(self, home: str, manifest: Manifest, folder: str) -> None:
        self._ask(lambda catalog: catalog.add(home, manifest, folder))

    def add_all(self, home: str, found: Iterable[tuple[Manifest, str]]) -> None:
        every = tuple(found)  # it may be asked twice
        self._ask(lambda catalog: catalog.add_all(home, every))

    def add_texts(self, home: str, found: Iterable[tuple[Manifest, str, str]]) -> None:
        every = tuple(found)
        self._ask(lambda catalog: catalog.add_texts(home, every))

    def forget(self, home: str, folder: str) -> None:
        self._ask(lambda catalog: catalog.forget(home, folder))

    def learn(self, home: str, source: str, facts: Iterable[Fact], *, size: int, begin: int = 0) -> int:
        every = tuple(facts)
        return self._ask(lambda catalog: catalog.learn(home, source, every, size=size, begin=begin))

    def learn_whole(self, home: str, found: Iterable[tuple[str, Sequence[Fact], int]]) -> None:
        every = tuple(found)
        self._ask(lambda catalog: catalog.learn_whole(home, every))

    def read_sizes(self, home: str) -> dict[str, int]:
        return self._ask(lambda catalog: catalog.read_sizes(home))

    def entries(self, home: str) -> Sequence[Entry]:
        return self._ask(lambda catalog: catalog.entries(home))

    def recovery_point(self, home: str, *, before_step: int | None = None) -> Entry | None:
        return self._ask(lambda catalog: catalog.recovery_point(home, before_step=before_step))

    def begin(self, home: str, start: Start) -> None:
        self._ask(lambda catalog: catalog.begin(home, start))

    def starts(self, home: str) -> Sequence[Start]:
        return self._ask(lambda catalog: catalog.starts(home))

    def homes(self) -> tuple[str, ...]:
        return self._ask(lambda catalog: catalog.homes())

    def close(self) -> None:
        self._catalog.close()

    def _ask(self, work: Callable[[SqlCatalog], T]) -> T:
        asked = self._catalog
        try:
            return work(asked)
        except StoreError as error:
            if not is_no_database(error):
                raise
            if self._replaced(asked):
                self._emit(Note(text=f"{error.message}; it is kept in memory, saving goes on"))
        return work(self._catalog)

    def _replaced(self, asked: SqlCatalog) -> bool:
        """Put another one in its place; False where another thread has done so."""
        with self._turn:
            if self._catalog is not asked:
                return False
            spare = open_sqlite(None)
            try:
                refresh(spare, self._home, self._store)
            except BaseException:
                spare.close()
                raise
            self._catalog = spare
            asked.close()
            return True
