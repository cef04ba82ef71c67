"""What is written into a catalog in SQL, within one transaction: every column is right when it ends."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from mementum.catalog import facts, sql_columns
from mementum.catalog.sql_tables import attempts, checkpoints, facts_table, journals
from mementum.format import typed_json
from mementum.records import Fact, Manifest, Start

Row = TypeVar("Row")
BATCH = 500  # rows at once: more save little, and each may hold a manifest of many kilobytes
STATE = ("health", "judged", "judged_why", "damaged", "verified", "pinned", "pinned_by", "places", "restore_s", "band")


def enter(connection: sa.Connection, home: str, found: Iterable[tuple[Manifest, str, str]]) -> None:
    """Checkpoints with their folders and texts, each in the place of what was known to be in its folder."""
    remaining = iter(found)
    while batch := list(islice(remaining, BATCH)):
        known = _known(connection, home, [manifest.id for manifest, *_ in batch])
        rows = {}
        for manifest, folder, text in batch:
            columns = sql_columns.of_manifest(manifest, text)
            state = sql_columns.of_facts(
                known.get(manifest.id, facts.Known()),
                saved_health=manifest.health.value,
                non_finite=bool(columns["non_finite"]),
                granularity=int(manifest.granularity),
                seq=manifest.seq,
            )
            rows[folder] = {"home": home, "folder": folder, **columns, **state}  # of two in one folder the later one
        connection.execute(_upsert(connection.dialect.name, checkpoints), list(rows.values()))


def forget(connection: sa.Connection, home: str, folder: str) -> None:
    connection.execute(sa.delete(checkpoints).where(checkpoints.c.home == home, checkpoints.c.folder == folder))


def learn(connection: sa.Connection, home: str, source: str, told: Sequence[Fact], *, size: int, begin: int) -> int:
    """Facts in the place of what the source was known to say from `begin` on, with all that follows from them. How
    much of it is known then."""
    of = (journals.c.home == home, journals.c.source == source)
    before = int(connection.execute(sa.select(journals.c.size).where(*of)).scalar() or 0)
    if before < begin:
        return before
    _take_in(connection, home, [(source, told, size)], begin=begin)
    return size


def learn_whole(connection: sa.Connection, home: str, found: Sequence[tuple[str, Sequence[Fact], int]]) -> None:
    """All that these sources say, each with its size, in the place of what they were known to say."""
    _take_in(connection, home, found, begin=0)


def _take_in(
    connection: sa.Connection, home: str, found: Sequence[tuple[str, Sequence[Fact], int]], *, begin: int
) -> None:
    """What follows from them is stated once, however many they are."""
    changed: set[tuple[str, str, str | None]] = set()
    for some in _batches(found):
        rows: list[dict[str, Any]] = [
            {
                "home": home,
                "source": source,
                "number": begin + number,  # a fact takes more than a byte, so that those that follow sort behind it
                "kind": sql_columns.plain(fact.kind),
                "time": sql_columns.plain(fact.time),
                "checkpoint": None if fact.checkpoint is None else sql_columns.plain(fact.checkpoint),
                "step": fact.step,
                "data": json.dumps(typed_json.encode(dict(fact.values))),
            }
            for source, told, _ in some
            for number, fact in enumerate(told)
        ]
        table = facts_table.c
        old = (table.home == home, table.source.in_([source for source, *_ in some]), table.number >= begin)
        telling = table.kind.in_((*facts.JUDGING, *facts.OF_ATTEMPTS))
        gone = connection.execute(sa.select(table.source, table.kind, table.checkpoint).where(*old, telling)).all()
        connection.execute(sa.delete(facts_table).where(*old))
        for batch in _batches(rows):
            connection.execute(sa.insert(facts_table), batch)
        sizes = [{"home": home, "source": source, "size": size} for source, _, size in some]
        connection.execute(_upsert(connection.dialect.name, journals), sizes)
        changed |= {(row.source, row.kind, row.checkpoint) for row in gone}
        changed |= {(row["source"], row["kind"], row["checkpoint"]) for row in rows}
    _restate(connection, home, sorted({id for _, kind, id in changed if kind in facts.JUDGING and id is not None}))
    journals_of = {facts.attempt_of(source) for source, kind, _ in changed if kind in facts.OF_ATTEMPTS}
    for attempt in sorted(number for number in journals_of if number is not None):
        ours = (attempts.c.home == home, attempts.c.number == attempt)
        connection.execute(sa.update(attempts).where(*ours).values(**_outcome(connection, home, attempt)))


def begin(connection: sa.Connection, home: str, start: Start) -> None:
    """An attempt, in the place of one that had its number and gave way."""
    row = {
        "home": home,
        "number": start.number,
        "time": sql_columns.plain(start.time),
        "host": sql_columns.plain(start.host),
        "pid": start.pid,
        "came_from": start.came_from,
        **_outcome(connection, home, start.number),
    }
    connection.execute(_upsert(connection.dialect.name, attempts), row)


@cache
def _upsert(dialect: str, table: sa.Table) -> sa.Insert:
    """A row in the place of the one with its key. Made once: its thirty columns take longer than its execution."""
    statement = (sqlite.insert if dialect == "sqlite" else postgresql.insert)(table)
    keys = [column.name for column in table.primary_key]
    others = {column.name: statement.excluded[column.name] for column in table.c if not column.primary_key}
    return statement.on_conflict_do_update(index_elements=keys, set_=others)


def _restate(connection: sa.Connection, home: str, ids: Sequence[str]) -> None:
    """Make the columns that facts decide anew."""
    columns = checkpoints.c
    wanted = (columns.folder, columns.id, columns.saved_health, columns.non_finite, columns.granularity, columns.seq)
    for batch in _batches(ids):
        rows = connection.execute(sa.select(*wanted).where(columns.home == home, columns.id.in_(batch))).all()
        if not rows:
            continue
        known = _known(connection, home, [row.id for row in rows])
        here = (columns.home == sa.bindparam("of_home"), columns.folder == sa.bindparam("of_folder"))
        state: dict[str, Any] = {name: sa.bindparam(name) for name in STATE}
        connection.execute(
            sa.update(checkpoints).where(*here).values(state),
            [
                {
                    "of_home": home,
                    "of_folder": row.folder,
                    **sql_columns.of_facts(
                        known.get(row.id, facts.Known()),
                        saved_health=row.saved_health,
                        non_finite=row.non_finite,
                        granularity=row.granularity,
                        seq=row.seq,
                    ),
                }
                for row in rows
            ],
        )


def _known(connection: sa.Connection, home: str, ids: Sequence[str]) -> dict[str, facts.Known]:
    table = facts_table.c
    which = (table.home == home, table.checkpoint.in_(ids), table.kind.in_(facts.JUDGING))
    found: dict[str, list[tuple[str, int, Fact]]] = {}
    for row in connection.execute(sa.select(facts_table).where(*which)):
        found.setdefault(row.checkpoint, []).append((row.source, row.number, fact_of(row)))
    return {id: facts.known(facts.in_order(told)) for id, told in found.items()}


def _outcome(connection: sa.Connection, home: str, attempt: int) -> dict[str, str | None]:
    """What the attempt's journal, and parts of it, say of it. They are few: of all facts only theirs are looked at."""
    known = connection.execute(sa.select(journals.c.source).where(journals.c.home == home)).scalars()
    sources = [source for source in known if facts.attempt_of(source) == attempt]
    table = facts_table.c
    which = (table.home == home, table.source.in_(sources), table.kind.in_(facts.OF_ATTEMPTS))
    rows = connection.execute(sa.select(facts_table).where(*which))
    told = facts.outcome(facts.in_order((row.source, row.number, fact_of(row)) for row in rows))
    return {"told_from": told.came_from, "ended": None if told.ended is None else sql_columns.plain(told.ended)}


def fact_of(row: Any) -> Fact:
    values = sql_columns.values_of(row.data)
    return Fact(kind=row.kind, time=row.time, checkpoint=row.checkpoint, step=row.step, values=values)


def _batches(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    return (rows[begin : begin + BATCH] for begin in range(0, len(rows), BATCH))
