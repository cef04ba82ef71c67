"""The catalog in SQL says what it was told, to everybody at once, and is a cache that may be lost."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mementum.catalog.sql import SCHEMA, SqlCatalog, open_sqlite
from mementum.clock import ManualClock
from mementum.errors import StoreError
from mementum.events import Event, Note
from mementum.format import manifest as manifests
from mementum.opening import Opened, open_catalog, open_task
from mementum.records import NON_FINITE, Entry, Fact, Granularity, Health, Manifest, StoredFile

HOME, OTHER = "20261130/t_000001", "20261130/u_000002"


def manifest(seq: int, *, attempt: int = 1, id: str = "", step: int | None = None, **fields: object) -> Manifest:
    return Manifest(
        **{
            "id": id or f"c{seq}",
            "seq": seq,
            "task": "größe",
            "attempt": attempt,
            "parent": None,
            "step": seq * 10 if step is None else step,
            "epoch": 0,
            "time": "2026-11-30T06:10:09.000000Z",
            "reason": "asked",
            "granularity": Granularity.FULL,
            "health": Health.CLEAN,
            "files": (StoredFile(name="a.blocks", size=1 << 40),),
            "metrics": {"loss": 0.5},
            "user": {"path": ("a", 1)},
            **fields,
        }
    )


def fact(kind: str, second: int, *, checkpoint: str | None = None, step: int | None = None, **values: object) -> Fact:
    time = f"2026-11-30T06:10:{second:02d}.000000Z"
    return Fact(kind=kind, time=time, checkpoint=checkpoint, step=step, values=values)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "catalog.db"


@pytest.fixture(params=["file", "memory"])
def catalog(request: pytest.FixtureRequest, path: Path) -> Iterator[SqlCatalog]:
    made = open_sqlite(path if request.param == "file" else None)
    yield made
    made.close()


def ids(catalog: SqlCatalog, home: str = HOME) -> list[str]:
    return [entry.manifest.id for entry in catalog.entries(home)]


def test_what_was_added_comes_back_whole(catalog: SqlCatalog) -> None:
    one = manifest(1, health=Health.SUSPECT, debug_info=({"step": 1, "loss": float("inf")},))
    catalog.add(HOME, one, "step_0000000010")
    assert catalog.entries(HOME) == [Entry(manifest=one, folder="step_0000000010", metrics={"loss": 0.5})]
    assert catalog.entries(OTHER) == []


def test_entries_are_in_order_of_sequence_numbers(catalog: SqlCatalog) -> None:
    for seq, attempt in ((3, 1), (1, 1), (2, 2), (2, 1), (10, 1)):
        made = manifest(seq, attempt=attempt, id=f"c{seq}.{attempt}", step=100 - seq)
        catalog.add(HOME, made, f"step_{seq}.{attempt}")
    assert ids(catalog) == ["c1.1", "c2.1", "c2.2", "c3.1", "c10.1"]


def test_adding_again_changes_nothing_and_a_folder_has_one_entry(catalog: SqlCatalog) -> None:
    for _ in range(2):
        catalog.add(HOME, manifest(1), "step_0000000010")
    assert ids(catalog) == ["c1"]
    catalog.add(HOME, manifest(2), "step_0000000010")
    assert ids(catalog) == ["c2"]


def test_homes_are_apart(catalog: SqlCatalog) -> None:
    catalog.add(HOME, manifest(1), "step_0000000010")
    catalog.add(OTHER, manifest(2), "step_0000000010")
    catalog.learn(OTHER, "journal/0001.jsonl", [fact("metrics", 1, step=10, loss=9.0)], size=5)
    assert (ids(catalog), ids(catalog, OTHER)) == (["c1"], ["c2"])
    assert catalog.entries(HOME)[0].metrics == {"loss": 0.5}
    assert (catalog.read_sizes(HOME), catalog.read_sizes(OTHER)) == ({}, {"journal/0001.jsonl": 5})
    catalog.forget(HOME, "step_0000000010")
    assert (ids(catalog), ids(catalog, OTHER)) == ([], ["c2"])
    catalog.forget(HOME, "step_0000000010")


def test_learning_takes_the_place_of_what_was_learned_from_the_same_source(catalog: SqlCatalog) -> None:
    catalog.add(HOME, manifest(1), "f")
    catalog.learn(HOME, "a", [fact("metrics", 1, step=10, loss=1.0), fact("metrics", 2, step=10, acc=2.0)], size=10)
    catalog.learn(HOME, "b", [fact("metrics", 3, step=10, more=3.0)], size=7)
    assert catalog.entries(HOME)[0].metrics == {"loss": 1.0, "acc": 2.0, "more": 3.0}
    catalog.learn(HOME, "a", [fact("metrics", 1, step=10, loss=5.0)], size=20)
    assert catalog.entries(HOME)[0].metrics == {"loss": 5.0, "more": 3.0}
    assert catalog.read_sizes(HOME) == {"a": 20, "b": 7}
    catalog.learn(HOME, "a", [], size=0)
    assert catalog.entries(HOME)[0].metrics == {"loss": 0.5, "more": 3.0}


def test_late_metrics_are_the_steps_own_and_the_latest_counts(catalog: SqlCatalog) -> None:
    catalog.add(HOME, manifest(1), "f")
    catalog.add(HOME, manifest(2), "g")
    told = [fact("metrics", 9, step=10, acc=0.9), fact("metrics", 3, step=10, acc=0.3, nan=float("inf"))]
    catalog.learn(HOME, "a", [*told, fact("cost", 10, step=10, acc=7.0), fact("metrics", 1, step=11, acc=1.0)], size=1)
    assert [entry.metrics for entry in catalog.entries(HOME)] == [
        {"loss": 0.5, "acc": 0.3, "nan": float("inf")},  # the line that came later, whatever its time
        {"loss": 0.5},
    ]
    assert catalog.entries(HOME)[0].manifest.metrics == {"loss": 0.5}


def test_the_later_of_damaged_and_verified_holds(catalog: SqlCatalog) -> None:
    catalog.add(HOME, manifest(1), "f")
    catalog.add(HOME, manifest(2), "g")
    damaged = fact("damaged", 5, checkpoint="c1", what="index: it is missing")
    catalog.learn(HOME, "a", [damaged], size=1)
    assert [entry.damaged for entry in catalog.entries(HOME)] == ["index: it is missing", None]
    catalog.learn(HOME, "b", [fact("verified", 4, checkpoint="c1")], size=1)
    found = catalog.entries(HOME)[0]
    assert (found.damaged, found.verified) == ("index: it is missing", "2026-11-30T06:10:04.000000Z")
    catalog.learn(HOME, "c", [fact("verified", 6, checkpoint="c1")], size=1)
    found = catalog.entries(HOME)[0]
    assert (found.damaged, found.verified) == (None, "2026-11-30T06:10:06.000000Z")


def test_a_damage_without_words_is_one(catalog: SqlCatalog) -> None:
    catalog.add(HOME, manifest(1), "f")
    catalog.learn(HOME, "a", [fact("damaged", 5, checkpoint="c1")], size=1)
    assert catalog.entries(HOME)[0].damaged == "damaged"


@pytest.mark.parametrize("first", ["facts", "checkpoint"])
def test_health_and_pins_count_whichever_is_known_first(catalog: SqlCatalog, first: str) -> None:
    if first == "checkpoint":
        catalog.add(HOME, manifest(1), "f")
    suspect = fact("health", 5, checkpoint="c1", health="suspect", why="the loss jumped", onset=9)
    catalog.learn(HOME, "journal/0001.jsonl", [suspect, fact("pin", 6, checkpoint="c1", why="kept")], size=1)
    catalog.learn(HOME, "facts/b.json", [fact("health", 4, checkpoint="c1", health="clean")], size=1)
    if first == "facts":
        catalog.add(HOME, manifest(1), "f")
    (entry,) = catalog.entries(HOME)
    assert (entry.health, entry.judged_why, entry.pinned) == (Health.SUSPECT, "the loss jumped", "kept")
    assert entry.manifest.health is Health.CLEAN
    calm = fact("health", 7, checkpoint="c1", health="clean", why="calm since step 20")
    catalog.learn(HOME, "facts/a.json", [calm, fact("unpin", 7, checkpoint="c1")], size=1)
    (entry,) = catalog.entries(HOME)
    assert (entry.health, entry.judged_why, entry.pinned) == (Health.CLEAN, "calm since step 20", None)


def test_an_older_line_does_not_hold_because_the_clock_went_back(catalog: SqlCatalog) -> None:
    catalog.add(HOME, manifest(1), "f")
    told = [fact("health", 50, checkpoint="c1", health="clean"), fact("health", 5, checkpoint="c1", health="diverged")]
    catalog.learn(HOME, "journal/0002.jsonl", told, size=1)
    assert catalog.entries(HOME)[0].health is Health.DIVERGED
    catalog.learn(HOME, "journal/0010.jsonl", [fact("health", 1, checkpoint="c1", health="suspect")], size=1)
    assert catalog.entries(HOME)[0].health is Health.SUSPECT


def test_each_takes_back_its_own_pin_alone(catalog: SqlCatalog) -> None:
    catalog.add(HOME, manifest(1), "f")
    mine, its = fact("pin", 1, checkpoint="c1", why="for the paper", by="me"), fact("pin", 2, checkpoint="c1", why="x")
    catalog.learn(HOME, "facts/a.json", [mine], size=1)
    catalog.learn(HOME, "journal/0001.jsonl", [its], size=1)
    (entry,) = catalog.entries(HOME)
    assert (entry.pinned, entry.pinned_by) == ("for the paper (me)", {"me", "flight recorder"})
    catalog.learn(HOME, "journal/0001.jsonl", [its, fact("unpin", 3, checkpoint="c1")], size=2)
    (entry,) = catalog.entries(HOME)
    assert (entry.pinned, entry.pinned_by) == ("for the paper (me)", {"me"})


def test_no_fact_makes_clean_what_is_not_finite(catalog: SqlCatalog) -> None:
    catalog.add(HOME, manifest(1, health=Health.DIVERGED, decision={NON_FINITE: "model.weight"}), "f")
    catalog.add(HOME, manifest(2, health=Health.DIVERGED), "g")
    calm = [fact("health", 7, checkpoint=id, health="clean", why="calm") for id in ("c1", "c2")]
    catalog.learn(HOME, "facts/a.json", calm, size=1)
    assert [entry.health for entry in catalog.entries(HOME)] == [Health.DIVERGED, Health.CLEAN]


def test_what_a_source_says_from_a_byte_on_takes_the_place_of_what_it_said_from_there(catalog: SqlCatalog) -> None:
    catalog.add(HOME, manifest(1), "f")
    catalog.learn(HOME, "a", [fact("metrics", 1, step=10, a=1.0), fact("metrics", 1, step=10, b=1.0)], size=200)
    catalog.learn(HOME, "a", [fact("metrics", 1, step=10, a=2.0), fact("pin", 1, checkpoint="c1")], size=300, begin=200)
    (entry,) = catalog.entries(HOME)
    assert (entry.metrics, entry.pinned) == ({"loss": 0.5, "a": 2.0, "b": 1.0}, "no reason was given")
    catalog.learn(HOME, "a", [fact("metrics", 1, step=10, b=3.0)], size=290, begin=200)
    (entry,) = catalog.entries(HOME)
    assert (entry.metrics, entry.pinned) == ({"loss": 0.5, "a": 1.0, "b": 3.0}, None)
    assert catalog.read_sizes(HOME) == {"a": 290}


def test_a_file_keeps_it_and_two_may_have_it_open(path: Path) -> None:
    first, second = open_sqlite(path), open_sqlite(path)
    first.add(HOME, manifest(1), "f")
    second.add(HOME, manifest(2), "g")
    assert ids(first) == ids(second) == ["c1", "c2"]
    first.close()
    second.close()
    third = open_sqlite(path)
    assert ids(third) == ["c1", "c2"]
    third.close()


def test_threads_may_share_it(catalog: SqlCatalog) -> None:
    errors: list[BaseException] = []

    def work(first: int) -> None:
        try:
            for seq in range(first, first + 10):
                catalog.add(HOME, manifest(seq), f"f{seq}")
                catalog.entries(HOME)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(10 * number,)) for number in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert ids(catalog) == [f"c{seq}" for seq in range(10, 40)]


def test_an_older_catalog_that_is_not_what_it_should_be_is_made_anew(path: Path) -> None:
    old = open_sqlite(path)
    old.add(HOME, manifest(1), "f")
    old.learn(HOME, "a", [fact("metrics", 1, step=10, loss=1.0)], size=1)
    old.close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE schema SET version = ?", (SCHEMA - 1,))
        connection.execute("DROP TABLE facts")
        connection.execute("CREATE TABLE facts (another TEXT)")
    connection.close()
    new = open_sqlite(path)
    assert (new.entries(HOME), new.read_sizes(HOME)) == ([], {})
    new.learn(HOME, "a", [fact("metrics", 1, step=10, loss=1.0)], size=1)
    new.add(HOME, manifest(1), "f")
    assert new.entries(HOME)[0].metrics == {"loss": 1.0}
    new.close()
    again = open_sqlite(path)
    assert ids(again) == ["c1"]
    again.close()


@pytest.mark.parametrize("name", ["what?mode=ro", "50%20off", "a#b", "größe", "a b&c=d", "?", "x;y", "memory:"])
def test_the_path_is_taken_as_it_is(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    catalog = open_sqlite(folder / "catalog.db")
    catalog.add(HOME, manifest(1), "f")
    catalog.close()
    assert (folder / "catalog.db").is_file()
    assert [each.name for each in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    "content", [b"this is no database, but long enough for its header" * 9, b"SQLite format 3\0" * 40]
)
def test_a_file_that_is_no_database_is_told_with_what_to_do(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(StoreError) as caught:
        open_sqlite(path)
    assert str(path) in caught.value.message
    assert caught.value.kept == "all checkpoints: the catalog is only a cache of them"
    assert caught.value.next_command == "mementum rebuild ROOT makes it again from the manifests"


def test_a_manifest_that_was_changed_in_the_cache_is_as_if_it_were_not_there(path: Path) -> None:
    catalog = open_sqlite(path)
    catalog.add(HOME, manifest(1), "f")
    catalog.add(HOME, manifest(2), "g")
    catalog.close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE checkpoints SET manifest = replace(manifest, 'asked', 'bsked') WHERE seq = 1")
    connection.close()
    catalog = open_sqlite(path)
    assert ids(catalog) == ["c2"]
    catalog.add(HOME, replace(manifest(1)), "f")
    assert ids(catalog) == ["c1", "c2"]
    catalog.close()


def test_a_database_that_fails_later_is_a_store_error(path: Path) -> None:
    catalog = open_sqlite(path)
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE checkpoints")
    connection.close()
    for call in (lambda: catalog.entries(HOME), lambda: catalog.add(HOME, manifest(1), "f")):
        with pytest.raises(StoreError, match="cannot be used"):
            call()
    catalog.close()


@pytest.mark.parametrize("page", range(1, 12))
def test_a_torn_page_of_it_does_not_keep_a_task_from_opening(tmp_path: Path, page: int) -> None:
    events: list[Event] = []

    def opened() -> Opened:
        return open_task(tmp_path, "t", about={}, clock=ManualClock(), emit=events.append)

    first = opened()
    for seq in (1, 2):
        first.store.put(f"step_{seq:010d}/meta.json", [manifests.render(manifest(seq))])
    first.close()
    opened().close()
    path = tmp_path / "catalog.db"
    data = path.read_bytes()
    assert len(data) >= 4096 * 12
    path.write_bytes(data[: 4096 * page] + b"\xa5" * 4096 + data[4096 * (page + 1) :])
    again = opened()
    assert ids(again.catalog, again.home) == ["c1", "c2"]
    again.close()


def test_a_user_without_a_home_folder_has_a_catalog_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(root: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr("mementum.opening.catalog_path", homeless)
    events: list[Event] = []
    catalog = open_catalog(tmp_path, emit=events.append)
    assert catalog.entries(HOME) == []
    assert [type(event) for event in events] == [Note]


@pytest.mark.parametrize("garbage", ["", "{", "[1]", '{"$what": 1}', 7, b"\xff"])
def test_a_row_that_was_spoiled_stops_nobody(tmp_path: Path, garbage: object) -> None:
    catalog = open_sqlite(tmp_path / "c.db")
    for seq in (1, 2):
        catalog.add(HOME, manifest(seq), f"step_{seq}")
    catalog.learn(HOME, "facts/a.json", [fact("damaged", 1, checkpoint="c1"), fact("metrics", 1, step=10, x=1)], size=1)
    with sqlite3.connect(tmp_path / "c.db") as connection:
        connection.execute("UPDATE facts SET data = ?", (garbage,))
        connection.execute("UPDATE checkpoints SET manifest = ? WHERE seq = 2", (garbage,))
    connection.close()
    (entry,) = catalog.entries(HOME)
    assert (entry.folder, entry.damaged, entry.metrics) == ("step_1", "damaged", {"loss": 0.5})
    catalog.close()
