"""What makes room works where there is none: on a disk that takes no byte, and beside a start."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mementum import clearing
from mementum.catalog import facts as fact_files
from mementum.catalog import noted, tasks
from mementum.catalog.rebuild import refresh
from mementum.catalog.sql import SqlCatalog, open_sqlite
from mementum.clearing import FULL, UNSURE, Cleared, clear_leftovers, forget_now, free
from mementum.clock import ManualClock
from mementum.decide.retain import Retention
from mementum.errors import StoreError, TaskInUse
from mementum.events import Note
from mementum.execute.claim import claim
from mementum.records import Buffer, Fact
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore
from test_clearing import run_of, saved, steps
from trips import Told

LEFT = "step_0000000099/optimizer.blocks"


class Full(LocalStore):
    """A disk without a byte of room, until `frees` checkpoints are gone."""

    def __init__(self, folder: str, *, frees: int) -> None:
        super().__init__(PosixDisk(), folder)
        self.missing = frees
        self.done: list[str] = []

    def put(self, key: str, chunks: Iterable[Buffer]) -> None:
        if self.missing:
            cause = OSError(errno.ENOSPC, "No space left on device")
            raise StoreError(key, f"{key}: the disk is full") from cause
        super().put(key, chunks)
        self.done.append(f"put {key.partition('/')[0]}")

    def delete(self, key: str) -> None:
        super().delete(key)
        if key.endswith("meta.json"):
            self.done.append(f"remove {int(key[5:15])}")
            self.missing = max(0, self.missing - 1)


@contextmanager
def full(root: Path, *, frees: int) -> Iterator[tuple[Full, str, SqlCatalog]]:
    found = tasks.find(LocalStore(PosixDisk(), str(root)), "t")
    assert found is not None
    store, catalog = Full(f"{root}/{found}", frees=frees), open_sqlite(None)
    refresh(catalog, found, store)
    yield store, found, catalog
    catalog.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with run_of(tmp_path) as run:
        saved(run, 5)
    return tmp_path


def how(**given: Any) -> dict[str, Any]:
    return {"clock": ManualClock(now_s=1_796_000_000.0), "emit": Told(), "dry_run": False, **given}


def told(store: LocalStore) -> list[Fact]:
    return [fact for stat in store.list("facts/") for fact in fact_files.parse(store.get(stat.key))]


@pytest.mark.parametrize("frees", [0, 1, 3])
def test_on_a_full_disk_some_go_before_the_facts_that_say_so(root: Path, frees: int) -> None:
    with full(root, frees=frees) as (store, home, catalog):
        found = list(catalog.entries(home))
        events = Told()
        done = forget_now(store, home, catalog, Retention(last=1), **how(by="me", emit=events))
        assert [verdict.keep for verdict in done.verdicts] == [True, False, False, False, False]
        first = [f"remove {step}" for step in range(1, frees + 1)]
        assert store.done == [*first, "put facts", *(f"remove {step}" for step in range(frees + 1, 5))]
        assert steps(list(catalog.entries(home))) == [5]
        facts = told(store)
        assert {fact.checkpoint for fact in facts} == {entry.manifest.id for entry in found[:4]}
        assert [dict(fact.values) for fact in facts] == [noted.removed("older than the newest 1", by="me")] * 4
        assert [event.step for event in events if type(event).__name__ == "Removed"] == [1, 2, 3, 4]
        anew = open_sqlite(None)
        refresh(anew, home, store)
        assert list(anew.entries(home)) == list(catalog.entries(home))
        anew.close()


def test_room_is_found_on_a_full_disk(root: Path) -> None:
    with full(root, frees=1) as (store, home, catalog):
        done = free(store, home, catalog, need=1, **how())
        assert (done.missing, done.freed >= 1, len(catalog.entries(home)), len(told(store))) == (0, True, 4, 1)


def test_a_disk_that_stays_full_is_told_with_what_went(root: Path) -> None:
    with full(root, frees=9) as (store, home, catalog):
        with pytest.raises(StoreError, match="the disk is full") as failed:
            forget_now(store, home, catalog, Retention(last=2), **how())
        assert store.done == ["remove 1", "remove 2", "remove 3"]
        assert failed.value.kept is not None
        assert "3 of the 3" in failed.value.kept


def test_another_error_is_no_full_disk(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with full(root, frees=0) as (store, home, catalog):
        refused = StoreError("k", "no permission")
        monkeypatch.setattr(store, "put", lambda key, chunks: (_ for _ in ()).throw(refused))
        with pytest.raises(StoreError, match="no permission"):
            forget_now(store, home, catalog, Retention(last=1), **how())
        assert (store.done, steps(list(catalog.entries(home)))) == ([], [1, 2, 3, 4, 5])


def test_a_catalog_on_the_full_disk_is_only_a_cache(root: Path) -> None:
    """It takes no change, such as what it does not know yet; what lies there decides."""
    with full(root, frees=0) as (store, home, catalog):

        class Refusing(SqlCatalog):
            def __init__(self) -> None:
                self.__dict__.update(catalog.__dict__)

            def entries(self, home: str) -> Any:
                raise StoreError("catalog.db", "database or disk is full")

        done = forget_now(store, home, Refusing(), Retention(last=2), **how())
        assert steps(list(done.entries)) == [1, 2, 3, 4, 5]
        assert steps(list(catalog.entries(home))) == [4, 5]


def leftovers(root: Path, store: LocalStore, **given: Any) -> Cleared:
    return clear_leftovers(root, "t", store, **how(**given))


def test_leftovers_wait_until_a_claim_fits(root: Path) -> None:
    with full(root, frees=0) as (store, _, _):
        store.put(LEFT, [b"half a save"])
        store.missing = 1
        assert leftovers(root, store) == Cleared(verdicts=(), entries=(), freed=0, leftovers=(LEFT,), held=FULL)
        store.missing = 0
        assert leftovers(root, store).held is None
        assert LEFT not in {stat.key for stat in store.list()}


def test_whoever_clears_leaves_no_attempt_and_a_start_waits_for_him(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with full(root, frees=0) as (store, home, catalog):
        store.put(LEFT, [b"half a save"])
        attempts = [stat.key for stat in store.list("attempts/")]
        swept, events = [], Told()
        sweep = clearing.sweep

        def meanwhile(task: LocalStore, **given: Any) -> object:
            with pytest.raises(TaskInUse, match="is being cleared by"):
                claim(store, task="t", facts={}, clock=ManualClock(), emit=events)
            refresh(catalog, home, store)  # such as by `mementum ls`
            swept.append(LEFT)
            return sweep(task, **given)

        monkeypatch.setattr(clearing, "sweep", meanwhile)
        assert leftovers(root, store).held is None
        assert (swept, len(events.of(Note))) == ([LEFT], 1)
        assert [stat.key for stat in store.list("attempts/")] == attempts
        assert [start.number for start in catalog.starts(home)] == [1]
        with run_of(root) as run:
            assert run._opened.attempt.number == 2


def test_beside_who_may_still_write_nothing_is_swept(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with full(root, frees=0) as (store, _, _):
        store.put(LEFT, [b"half a save"])
        monkeypatch.setattr("mementum.execute.claim._takes_over", lambda start, found: "so it was asked")
        with run_of(root):
            assert LEFT not in {stat.key for stat in store.list()}
            store.put(LEFT, [b"half a save"])
            assert leftovers(root, store).held == UNSURE
            assert LEFT in {stat.key for stat in store.list()}
