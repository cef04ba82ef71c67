"""A catalog of another version: a newer one is left alone, and an older one is made ours with all that it knew."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from mementum.catalog.sql import SCHEMA, open_sql, open_sqlite
from mementum.errors import StoreError
from mementum.events import Event, Note
from mementum.format import manifest as manifests
from mementum.opening import open_catalog
from mementum.records import Health
from mementum.testing.catalog_contract import HOME, fact, folder, ids, manifest

# As schema 2 had them.
SECOND = """
CREATE TABLE schema (version INTEGER NOT NULL, PRIMARY KEY (version));
CREATE TABLE checkpoints (home VARCHAR NOT NULL, folder VARCHAR NOT NULL, id VARCHAR NOT NULL, task VARCHAR NOT NULL,
  seq INTEGER NOT NULL, attempt INTEGER NOT NULL, step INTEGER NOT NULL, time VARCHAR NOT NULL, reason VARCHAR NOT NULL,
  granularity INTEGER NOT NULL, size BIGINT NOT NULL, manifest TEXT NOT NULL, PRIMARY KEY (home, folder));
CREATE TABLE facts (home VARCHAR NOT NULL, source VARCHAR NOT NULL, number INTEGER NOT NULL, kind VARCHAR NOT NULL,
  time VARCHAR NOT NULL, checkpoint VARCHAR, step INTEGER, data TEXT NOT NULL, PRIMARY KEY (home, source, number));
CREATE TABLE journals (home VARCHAR NOT NULL, source VARCHAR NOT NULL, size INTEGER NOT NULL,
  PRIMARY KEY (home, source));
CREATE INDEX ix_checkpoints_id ON checkpoints (id);
CREATE INDEX facts_by_checkpoint ON facts (home, checkpoint, kind);
INSERT INTO schema VALUES (2);
"""
ROW = "INSERT INTO checkpoints VALUES ('{home}', '{folder}', 'x', 'x', 0, 0, 0, 'x', 'x', 0, 0, '{text}');"
TOLD = "INSERT INTO facts VALUES ('{home}', 'journal/0001.jsonl', 0, 'health', 't', 'c002', NULL, '{data}');"


def second() -> str:
    """What a catalog of schema 2 held: two checkpoints, one that cannot be read, and a fact."""
    texts = [manifests.render(manifest(seq)).decode() for seq in (1, 2)] + ["nonsense"]
    rows = [ROW.format(home=HOME, folder=folder(seq), text=text) for seq, text in enumerate(texts, start=1)]
    told = TOLD.format(home=HOME, data='{"health": "suspect", "why": "a jump"}')
    return SECOND + "".join(rows) + told + f"INSERT INTO journals VALUES ('{HOME}', 'journal/0001.jsonl', 70);"


def test_an_older_catalog_keeps_all_that_it_knew(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    with sqlite3.connect(path) as connection:
        connection.executescript(second())
    connection.close()
    for _ in range(2):
        catalog = open_sqlite(path)
        first, other = catalog.entries(HOME)
        assert (first.manifest, other.manifest) == (manifest(1), manifest(2))
        assert (first.health, other.health, other.judged_why) == (Health.CLEAN, Health.SUSPECT, "a jump")
        assert catalog.recovery_point(HOME) == first
        assert catalog.read_sizes(HOME) == {"journal/0001.jsonl": 70}
        catalog.close()
    with sqlite3.connect(path) as connection:
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        assert connection.execute("SELECT version FROM schema").fetchall() == [(SCHEMA,)]
    connection.close()
    assert names == {"schema", "checkpoints", "facts", "journals", "attempts"}


def test_an_older_postgres_keeps_all_that_it_knew(postgres_url: str) -> None:
    import psycopg

    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA mementum")
        connection.execute("SET search_path = mementum")
        for statement in second().split(";"):
            if statement.strip():
                connection.execute(statement.encode())
    for _ in range(2):
        catalog = open_sql(postgres_url)
        assert [entry.health for entry in catalog.entries(HOME)] == [Health.CLEAN, Health.SUSPECT]
        assert catalog.read_sizes(HOME) == {"journal/0001.jsonl": 70}
        catalog.add(HOME, manifest(3), folder(3))
        assert ids(catalog) == ["c001", "c002", "c003"]
        catalog.forget(HOME, folder(3))
        catalog.close()


def test_a_newer_catalog_is_left_alone_and_a_run_goes_on_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    catalog = open_sqlite(path)
    catalog.add(HOME, manifest(1), folder(1))
    catalog.close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE schema SET version = ?", (SCHEMA + 1,))
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match=f"has version {SCHEMA + 1}, here {SCHEMA} is known") as caught:
        open_sqlite(path)
    assert caught.value.next_command == "pip install --upgrade mementum"
    told: list[Event] = []
    in_memory = open_catalog(tmp_path, emit=told.append)
    in_memory.add(HOME, manifest(2), folder(2))
    assert ids(in_memory) == ["c002"]
    in_memory.close()
    (note,) = told
    assert isinstance(note, Note)
    assert "newer mementum" in note.text
    assert path.read_bytes() == before


def test_a_newer_postgres_is_left_alone(postgres_url: str) -> None:
    import psycopg

    catalog = open_sql(postgres_url)
    catalog.add(HOME, manifest(1), folder(1))
    catalog.close()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("UPDATE mementum.schema SET version = 99")
        with pytest.raises(StoreError, match="has version 99"):
            open_sql(postgres_url)
        assert connection.execute("SELECT count(*) FROM mementum.checkpoints").fetchone() == (1,)


@pytest.mark.parametrize("kind", ["file", "postgres"])
def test_many_may_make_it_at_once(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue("postgres_url") if kind == "postgres" else ""
    failures: list[BaseException] = []
    together = threading.Barrier(6)

    def work(seq: int) -> None:
        try:
            together.wait()
            catalog = open_sql(url) if url else open_sqlite(tmp_path / "catalog.db")
            catalog.add(HOME, manifest(seq), folder(seq))
            catalog.learn(HOME, f"facts/{seq}.json", [fact("pin", 1, checkpoint="c001", by=str(seq))], size=seq)
            catalog.close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seq,)) for seq in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    catalog = open_sql(url) if url else open_sqlite(tmp_path / "catalog.db")
    assert ids(catalog) == [f"c{seq:03d}" for seq in range(1, 7)]
    assert catalog.entries(HOME)[0].pinned_by == {"1", "2", "3", "4", "5", "6"}
    catalog.close()
