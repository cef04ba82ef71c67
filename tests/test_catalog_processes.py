"""Eight processes save two hundred times each into one catalog: nothing is lost, and nothing is there twice."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from catalog_saves import FORGETS_EVERY, LEARNS_EVERY, LINE, SAVES, id_of, journal_of, open_at, save
from mementum.testing.catalog_contract import HOME

WRITERS = range(1, 9)
PATIENCE_S = 300.0  # for a process that hangs, not for one that is slow
PRELOADED = ["catalog_saves", "mementum.catalog.redis", "psycopg", "sqlalchemy.dialects.postgresql.psycopg"]


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "catalog.db")
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


def test_nothing_is_lost_and_nothing_is_there_twice(where: str) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    processes = [context.Process(target=save, args=(where, writer)) for writer in WRITERS]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE_S)
    assert [process.exitcode for process in processes] == [0] * len(processes)
    catalog = open_at(where)
    entries = catalog.entries(HOME)
    kept = [number for number in range(SAVES) if number % FORGETS_EVERY]
    assert [entry.manifest.id for entry in entries] == [id_of(writer, number) for number in kept for writer in WRITERS]
    learnt = set(range(LEARNS_EVERY - 1, SAVES, LEARNS_EVERY))
    for entry in entries:
        writer, number = entry.manifest.attempt, entry.manifest.step
        assert entry.pinned == ("kept" if number in learnt else None)
        assert entry.metrics.get("acc") == (float(writer) if number in learnt else None)
        assert entry.damaged == ("index" if number + 1 in learnt else None)
    lines = 3 * LINE * len(learnt)
    assert catalog.read_sizes(HOME) == {journal_of(writer): lines for writer in WRITERS}
    assert [start.number for start in catalog.starts(HOME)] == list(WRITERS)
    point = catalog.recovery_point(HOME)
    assert point == entries[-1]
    catalog.close()
