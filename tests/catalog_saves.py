"""A process that saves many checkpoints as far as a catalog sees of it, beside others that do the same, for tests."""

from __future__ import annotations

from pathlib import Path

from mementum.catalog.catalog import Catalog
from mementum.catalog.servers import open_server
from mementum.catalog.sql import open_sqlite
from mementum.records import Start
from mementum.testing.catalog_contract import HOME, fact, manifest

SAVES = 200
LEARNS_EVERY, FORGETS_EVERY = 10, 5
LINE = 100  # bytes that a line of its journal is said to have


def open_at(where: str) -> Catalog:
    return open_server(where) if "://" in where else open_sqlite(Path(where))


def id_of(writer: int, number: int) -> str:
    return f"c{number:04d}-{writer}"


def journal_of(writer: int) -> str:
    return f"journal/{writer:04d}.jsonl"


def save(where: str, writer: int) -> None:
    """SAVES checkpoints with ids of its own; the first of every five goes again, each tenth is pinned and measured."""
    catalog = open_at(where)
    catalog.begin(HOME, Start(number=writer, time="2026-11-30T06:10:09.000000Z", pid=writer))
    size = 0
    for number in range(SAVES):
        id = id_of(writer, number)
        # All processes go through the same steps, so that what is late of a step is looked at by each.
        catalog.add(HOME, manifest(number, id=id, attempt=writer, step=number), f"step_{number:010d}-{writer}")
        if number % LEARNS_EVERY == LEARNS_EVERY - 1:
            told = [
                fact("pin", number % 60, checkpoint=id, why="kept"),
                fact("metrics", number % 60, checkpoint=id, step=number, acc=float(writer)),
                fact("damaged", number % 60, checkpoint=id_of(writer, number - 1), what="index"),
            ]
            # As a journal is read: what stood in its last line, which was torn, is read again.
            catalog.learn(HOME, journal_of(writer), told[:2], size=size + 2 * LINE, begin=size)
            catalog.learn(HOME, journal_of(writer), told[1:], size=size + 3 * LINE, begin=size + LINE)
            size += 3 * LINE
        if number % FORGETS_EVERY == 0:
            catalog.forget(HOME, f"step_{number:010d}-{writer}")
    catalog.close()
