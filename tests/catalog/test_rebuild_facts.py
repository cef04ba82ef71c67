"""Many files of facts are taken in together: what follows from them is made anew once, and one that fails is alone."""

from __future__ import annotations

from typing import Any

import pytest

from mementum.catalog import facts, sql_writing
from mementum.catalog.rebuild import refresh
from mementum.catalog.sql import open_sqlite
from mementum.errors import StoreError
from mementum.format import manifest as manifests
from mementum.storage.local import LocalStore
from mementum.testing.catalog_contract import HOME, fact, folder, manifest
from mementum.testing.simdisk import SimDisk

COUNT = 60


def filled(store: LocalStore) -> LocalStore:
    for seq in (1, 2, 3):
        store.put(f"{folder(seq)}/meta.json", [manifests.render(manifest(seq))])
    for number in range(COUNT):
        told = fact("verified", number % 60, checkpoint=f"c00{number % 3 + 1}")
        store.put(f"facts/{number:03d}.json", [facts.render(told)])
    return store


def test_each_checkpoint_is_told_anew_once_however_many_files_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    told, restate = list[list[str]](), sql_writing._restate

    def counted(connection: Any, home: str, ids: Any) -> None:
        told.append(list(ids))
        restate(connection, home, ids)

    monkeypatch.setattr(sql_writing, "_restate", counted)
    store, catalog = filled(LocalStore(SimDisk(), "root")), open_sqlite(None)
    refresh(catalog, HOME, store)
    assert [ids for ids in told if ids] == [["c001", "c002", "c003"]]
    assert catalog.read_sizes(HOME) == {stat.key: stat.size for stat in store.list("facts/")}
    last = [fact("verified", COUNT - 3 + number).time for number in range(3)]
    assert [entry.verified for entry in catalog.entries(HOME)] == last


def test_a_file_that_cannot_be_read_keeps_none_before_it_from_being_known() -> None:
    class Refusing(LocalStore):
        def get(self, key: str, start: int = 0, size: int | None = None) -> memoryview:
            if key == "facts/030.json":
                raise StoreError(key, f"{key}: an input/output error")
            return super().get(key, start, size)

    store, catalog = filled(Refusing(SimDisk(), "root")), open_sqlite(None)
    with pytest.raises(StoreError, match="input/output"):
        refresh(catalog, HOME, store)
    assert sorted(catalog.read_sizes(HOME)) == [f"facts/{number:03d}.json" for number in range(30)]
