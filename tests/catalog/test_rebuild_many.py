"""A rebuild of many checkpoints, of attempts, and of journals that came in parts."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from mementum.catalog import facts
from mementum.catalog.rebuild import BATCH, FEW, refresh
from mementum.catalog.sql import SqlCatalog, open_sqlite
from mementum.errors import NotReadableHere
from mementum.format import manifest as manifests
from mementum.records import Damage, Fact, Start
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore
from mementum.storage.within import Within
from mementum.testing.catalog_contract import HOME, manifest
from mementum.testing.simdisk import SimDisk

MANY = BATCH + FEW


@pytest.fixture
def store() -> LocalStore:
    return LocalStore(SimDisk(), "root")


@pytest.fixture
def catalog() -> SqlCatalog:
    return open_sqlite(None)


def told(kind: str, second: int, **values: object) -> bytes:
    time = f"2026-11-30T06:10:{second:02d}.000000Z"
    return facts.render(Fact(kind=kind, time=time, checkpoint="c001", values=values))


def commit(folder: Path, seq: int, text: bytes) -> None:
    at = folder / f"step_{seq:010d}"
    at.mkdir(parents=True)
    (at / manifests.NAME).write_bytes(text)


def test_many_are_read_by_several_threads_and_their_progress_is_told(tmp_path: Path, catalog: SqlCatalog) -> None:
    readers: set[str] = set()

    class Watched(LocalStore):
        def get(self, key: str, start: int = 0, size: int | None = None) -> memoryview:
            readers.add(threading.current_thread().name)
            return super().get(key, start, size)

    for seq in range(1, MANY + 1):
        commit(tmp_path, seq, b"{}" if seq == 9 else manifests.render(manifest(seq)))
    store, steps = Watched(PosixDisk(), str(tmp_path)), list[tuple[int, int]]()
    (damage,) = refresh(catalog, HOME, store, progress=lambda done, total: steps.append((done, total)))
    assert damage.key == "step_0000000009/meta.json"
    assert steps == [(BATCH, MANY), (MANY, MANY)]
    assert [entry.manifest for entry in catalog.entries(HOME)] == [manifest(n) for n in range(1, MANY + 1) if n != 9]
    assert all(name.startswith("mementum-read") for name in readers)
    readers.clear()
    assert len(refresh(catalog, HOME, store)) == 1
    assert catalog.generations(HOME) == {f"step_{n:010d}": 1 for n in range(1, MANY + 1) if n != 9}


def test_few_are_read_by_the_thread_that_asks(tmp_path: Path, catalog: SqlCatalog) -> None:
    for seq in range(1, FEW + 1):
        commit(tmp_path, seq, manifests.render(manifest(seq)))
    before = threading.active_count()
    refresh(
        catalog,
        HOME,
        LocalStore(PosixDisk(), str(tmp_path)),
        progress=lambda done, total: require(threading.active_count() == before),
    )
    assert len(catalog.generations(HOME)) == FEW


def require(condition: bool) -> None:
    assert condition


def test_a_newer_manifest_among_many_is_raised_where_it_is_asked_for(tmp_path: Path, catalog: SqlCatalog) -> None:
    for seq in range(1, FEW + 10):
        text = manifests.render(manifest(seq))
        commit(tmp_path, seq, text if seq != 5 else newer(text))
    with pytest.raises(NotReadableHere):
        refresh(catalog, HOME, LocalStore(PosixDisk(), str(tmp_path)), strict=True)


def newer(text: bytes) -> bytes:
    blank = text.replace(b'"format": 1', b'"format": 9')
    head = blank[: blank.rindex(b'"digest"')] + b'"digest": "'
    tail = b'"\n}\n'
    return head + manifests.digest(head + manifests.ZEROS.encode() + tail).encode() + tail


def test_the_text_of_a_manifest_is_kept_as_it_is(store: LocalStore, catalog: SqlCatalog) -> None:
    text = manifests.render(manifest(1)).decode()
    head = text[: text.rindex('"digest"')] + '"later": "a field of a later version",\n "digest": "'
    digest = manifests.digest(f'{head}{manifests.ZEROS}"\n}}\n'.encode())
    store.put("step_0000000001/meta.json", [f'{head}{digest}"\n}}\n'.encode()])
    assert refresh(catalog, HOME, store) == ()
    assert [entry.manifest for entry in catalog.entries(HOME)] == [manifest(1)]
    assert refresh(catalog, HOME, store) == ()


def test_attempts_are_entered_and_the_newest_is_read_again(store: LocalStore, catalog: SqlCatalog) -> None:
    store.put("attempts/0001.json", [b'{"time": "T1", "host": "a", "pid": 7}'])
    store.put("attempts/0002.json", [b'{"time": "T2", "host": "b", "pid": 8}'])
    store.put("attempts/0002.lease-3", [b"{}"])
    store.put("attempts/0003.json", [b"torn"])
    refresh(catalog, HOME, store)
    first, second = Start(number=1, time="T1", host="a", pid=7), Start(number=2, time="T2", host="b", pid=8)
    assert list(catalog.starts(HOME)) == [first, second]
    store.delete("attempts/0003.json")
    store.delete("attempts/0002.json")  # it gave way, and the next start has its number
    store.put("attempts/0002.json", [b'{"time": "T3", "host": "c", "pid": "x"}'])
    refresh(catalog, HOME, store)
    assert list(catalog.starts(HOME)) == [first, Start(number=2, time="T3", host="c", pid=0)]


def test_parts_of_a_journal_are_read_in_their_order(store: LocalStore, catalog: SqlCatalog) -> None:
    store.put("step_0000000001/meta.json", [manifests.render(manifest(1))])
    store.put("attempts/0003.json", [b'{"time": "T", "host": "a", "pid": 7}'])
    first, second = told("damaged", 9, what="index"), told("verified", 1)  # the clock was set back
    store.put(facts.part_key(3, len(first)), [second])
    store.put(facts.part_key(3, 0), [first])
    store.put(facts.part_key(3, len(first + second)), [told("ended", 2, why="OutOfMemory")])
    refresh(catalog, HOME, store)
    (entry,) = catalog.entries(HOME)
    assert (entry.damaged, entry.verified) == (None, "2026-11-30T06:10:01.000000Z")
    assert [start.ended for start in catalog.starts(HOME)] == ["OutOfMemory"]


def test_parts_of_a_journal_that_is_here_itself_say_nothing_new(store: LocalStore, catalog: SqlCatalog) -> None:
    first, second = told("damaged", 1, what="index"), told("verified", 2)
    store.append("journal/0003.jsonl", first + second)
    store.put(facts.part_key(3, 0), [first])
    refresh(catalog, HOME, store)
    assert catalog.read_sizes(HOME) == {"journal/0003.jsonl": len(first + second)}


def test_a_store_that_is_no_home_is_read_as_well(store: LocalStore, catalog: SqlCatalog) -> None:
    """A tier's copy: nothing there can be a link or a folder in a manifest's place."""
    store.put(f"{HOME}/step_0000000001/meta.json", [manifests.render(manifest(1))])
    store.put(f"{HOME}/step_0000000002/meta.json", [b"{}"])
    store.put(f"{HOME}/step_0000000003/index-00000.json", [b"{}"])
    found = refresh(catalog, HOME, Within(store, HOME))
    assert [damage.key for damage in found] == ["step_0000000002/meta.json"]
    assert all(isinstance(damage, Damage) for damage in found)
    assert [entry.manifest for entry in catalog.entries(HOME)] == [manifest(1)]
