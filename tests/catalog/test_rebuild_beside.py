"""`mementum rebuild` makes a catalog anew while a training enters what it does: nothing of it is lost."""

from __future__ import annotations

from typing import Any

import pytest

from mementum.catalog import facts
from mementum.catalog.rebuild import learn, refresh
from mementum.catalog.sql import SqlCatalog, open_sqlite
from mementum.format import manifest as manifests
from mementum.storage.local import LocalStore
from mementum.testing.catalog_contract import HOME, JOURNAL, fact, folder, manifest
from mementum.testing.simdisk import SimDisk


class Meanwhile(LocalStore):
    """Something happens right before a journal is read."""

    def __init__(self) -> None:
        super().__init__(SimDisk(), "root")
        self.happens: Any = None

    def get(self, key: str, begin: int = 0, end: int | None = None) -> Any:
        if key == JOURNAL and self.happens is not None:
            happens, self.happens = self.happens, None
            happens()
        return super().get(key, begin, end)


def known(catalog: SqlCatalog) -> list[tuple[str, str, str | None]]:
    return [(entry.manifest.id, entry.health.value, entry.pinned) for entry in catalog.entries(HOME)]


@pytest.mark.parametrize("read", [0, 1], ids=["nothing", "the beginning"])
def test_the_middle_of_a_journal_is_not_lost(read: int) -> None:
    store = Meanwhile()
    for seq in (1, 2):
        store.put(f"{folder(seq)}/meta.json", [manifests.render(manifest(seq))])
    lines = [
        fact("metrics", 1, step=10, acc=1.0),
        fact("health", 2, checkpoint="c001", health="diverged", why="a spike"),
        fact("pin", 3, checkpoint="c002", why="mine"),
    ]
    training, fresh = open_sqlite(None), open_sqlite(None)
    for line in lines[:read]:
        store.append(JOURNAL, facts.render(line))
    refresh(fresh, HOME, store)  # what the rebuild has read
    for line in lines[read:2]:
        store.append(JOURNAL, facts.render(line))
    refresh(training, HOME, store)
    store.append(JOURNAL, facts.render(lines[2]))
    store.happens = lambda: training.become(fresh)
    learn(training, HOME, store)
    assert known(training) == [("c001", "diverged", None), ("c002", "clean", "mine")]
    assert training.read_sizes(HOME) == {JOURNAL: sum(len(facts.render(line)) for line in lines)}
    anew = open_sqlite(None)
    refresh(anew, HOME, store)
    assert list(anew.entries(HOME)) == list(training.entries(HOME))
    for catalog in (training, fresh, anew):
        catalog.close()


def test_who_only_clears_a_task_is_no_attempt() -> None:
    store, catalog = LocalStore(SimDisk(), "root"), open_sqlite(None)
    store.put("attempts/0001.json", [b'{"format": 1, "time": "t", "host": "h", "pid": 7}'])
    store.put("attempts/0002.json", [b'{"format": 1, "time": "u", "host": "h", "pid": 8, "clears": true}'])
    refresh(catalog, HOME, store)
    assert [(start.number, start.pid) for start in catalog.starts(HOME)] == [(1, 7)]
    catalog.close()
