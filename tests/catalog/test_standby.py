"""A catalog whose file turns out to be none any more goes on in memory, with all that the folder says."""

from __future__ import annotations

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mementum.catalog import facts
from mementum.catalog.rebuild import refresh
from mementum.catalog.sql import open_sqlite
from mementum.catalog.standby import StandbyCatalog
from mementum.errors import StoreError
from mementum.events import Event, Note
from mementum.format import manifest as manifests
from mementum.records import Start
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore
from mementum.testing.catalog_contract import HOME, JOURNAL, fact, folder, ids, manifest


class Rooted:
    """A folder with two checkpoints, of which the first is pinned, and its catalog in a file."""

    def __init__(self, root: Path) -> None:
        self.path, self.store = root / "catalog.db", LocalStore(PosixDisk(), f"{root}/{HOME}")
        for seq in (1, 2):
            self.store.put(f"{folder(seq)}/meta.json", [manifests.render(manifest(seq))])
        self.store.append(JOURNAL, facts.render(fact("pin", 1, checkpoint="c001", why="mine")))
        self.events: list[Event] = []
        local = open_sqlite(self.path)
        refresh(local, HOME, self.store)
        self.catalog = StandbyCatalog(local, home=HOME, store=self.store, emit=self.events.append)

    def ruin(self) -> None:
        """By whoever dropped a table: what is open sees it, as garbage is seen by whoever opens the file."""
        with sqlite3.connect(self.path) as database:
            database.execute("DROP TABLE checkpoints")
        database.close()


@pytest.fixture
def rooted(tmp_path: Path) -> Rooted:
    return Rooted(tmp_path)


@pytest.mark.parametrize("first", ["add", "forget", "learn", "entries", "point", "texts"])
def test_whatever_is_asked_first_is_answered_as_before(rooted: Rooted, first: str) -> None:
    rooted.ruin()
    catalog = rooted.catalog
    three = manifest(3)
    match first:
        case "add":
            catalog.add(HOME, three, folder(3))
        case "texts":
            catalog.add_texts(HOME, iter([(three, folder(3), manifests.render(three).decode())]))
        case "forget":
            catalog.forget(HOME, folder(2))
        case "learn":
            assert catalog.learn(HOME, "facts/a.json", iter([fact("pin", 2, checkpoint="c002")]), size=9) == 9
        case "point":
            point = catalog.recovery_point(HOME)
            assert point is not None
            assert point.manifest.id == "c002"
    wanted = {"add": ["c001", "c002", "c003"], "texts": ["c001", "c002", "c003"], "forget": ["c001"]}
    assert ids(catalog) == wanted.get(first, ["c001", "c002"])
    assert catalog.entries(HOME)[0].pinned == "mine"
    assert sum(entry.pinned is not None for entry in catalog.entries(HOME)) == (2 if first == "learn" else 1)
    (told,) = rooted.events
    assert isinstance(told, Note)
    assert "no such table" in told.text
    assert "kept in memory, saving goes on" in told.text
    catalog.close()


def test_several_threads_make_one_standby(rooted: Rooted) -> None:
    rooted.ruin()
    at_once = threading.Barrier(4)

    def work(number: int) -> None:
        at_once.wait(10)
        rooted.catalog.add(HOME, manifest(10 + number), folder(10 + number))

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(work, range(1, 5))) == [None] * 4
    assert ids(rooted.catalog) == ["c001", "c002", "c011", "c012", "c013", "c014"]
    rooted.catalog.begin(HOME, Start(number=1, time="t", host="h", pid=7))
    assert [start.pid for start in rooted.catalog.starts(HOME)] == [7]
    assert (len(rooted.events), rooted.catalog.homes()) == (1, (HOME,))
    rooted.catalog.close()


def test_an_error_that_passes_is_no_end(rooted: Rooted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mementum.catalog.sql.BUSY_TIMEOUT_S", 0.0)
    path = rooted.path
    catalog = StandbyCatalog(open_sqlite(path), home=HOME, store=rooted.store, emit=rooted.events.append)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked"):
        catalog.forget(HOME, folder(1))
    holder.execute("ROLLBACK")
    holder.close()
    catalog.forget(HOME, folder(1))
    other = open_sqlite(path)
    assert (ids(other), rooted.events) == (["c002"], [])
    for each in (other, catalog, rooted.catalog):
        each.close()


def test_a_folder_that_cannot_be_read_is_told_and_tried_again(rooted: Rooted, monkeypatch: pytest.MonkeyPatch) -> None:
    rooted.ruin()
    with monkeypatch.context() as broken:
        broken.setattr(LocalStore, "list", lambda store, prefix="": (_ for _ in ()).throw(StoreError("k", "gone")))
        with pytest.raises(StoreError, match="gone"):
            rooted.catalog.entries(HOME)
    assert ids(rooted.catalog) == ["c001", "c002"]
    assert len(rooted.events) == 1
    rooted.catalog.close()
