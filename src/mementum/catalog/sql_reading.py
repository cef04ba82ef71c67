"""What is read from a catalog in SQL, within one transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from mementum.catalog import facts, recovery, sql_columns
from mementum.catalog.branch import Branches, Link, holds
from mementum.catalog.entry import manifest_of
from mementum.catalog.sql_tables import attempts, checkpoints, facts_table, journals
from mementum.catalog.sql_writing import fact_of
from mementum.records import Entry, Fact, Start

OF_ENTRIES = (
    checkpoints.c.folder,
    checkpoints.c.damaged,
    checkpoints.c.verified,
    checkpoints.c.judged,
    checkpoints.c.judged_why,
    checkpoints.c.pinned,
    checkpoints.c.pinned_by,
    checkpoints.c.places,
    checkpoints.c.restore_s,
    checkpoints.c.manifest,
)


def _statement_of_recovery() -> sa.Select[Any]:
    """The best one of a step before `before`: from the highest band down to the first that has one of an earlier step,
    and of that band the best one. Only the index is looked at, and of each band but the last a single row."""
    one, other, wanted, read = (checkpoints.alias(name) for name in ("one", "other", "wanted", "read"))
    home: sa.BindParameter[str] = sa.bindparam("home")
    before: sa.BindParameter[int] = sa.bindparam("before")
    highest = sa.select(sa.func.max(one.c.band)).where(one.c.home == home)
    down = sa.select(highest.scalar_subquery().label("band")).cte("down", recursive=True)
    lower = sa.select(sa.func.max(one.c.band)).where(one.c.home == home, one.c.band < down.c.band)
    has_one = sa.exists().where(other.c.home == home, other.c.band == down.c.band, other.c.step < before)
    down = down.union_all(
        sa.select(lower.correlate(down).scalar_subquery()).where(down.c.band.is_not(None), ~has_one.correlate(down))
    )
    found = (
        sa.select(wanted.c.folder)
        .where(wanted.c.home == home, wanted.c.step < before)
        .where(wanted.c.band == sa.select(sa.func.min(down.c.band)).scalar_subquery())
        .order_by(wanted.c.seq.desc(), wanted.c.attempt.desc())
        .order_by(wanted.c.restore_s.is_(None), wanted.c.restore_s, wanted.c.id.desc())
        .limit(1)
    )
    columns = [read.c[column.name] for column in OF_ENTRIES]
    return sa.select(*columns).where(read.c.home == home, read.c.folder == found.scalar_subquery())


RECOVERY = _statement_of_recovery()


def entries(connection: sa.Connection, home: str) -> list[Entry]:
    columns = checkpoints.c
    rows = connection.execute(sa.select(*OF_ENTRIES).where(columns.home == home)).mappings().all()
    of_step = facts_table.c.step.in_(sa.select(columns.step).where(columns.home == home))
    late = _by_step(connection, home, of_step)
    found = [(row, manifest) for row in rows if (manifest := manifest_of(row["manifest"])) is not None]
    branches = Branches(manifest for _, manifest in found)
    made = (
        sql_columns.entry(
            dict(row), _values(late.get(manifest.step, []), lambda fact: branches.holds(fact, of)), manifest
        )
        for row, manifest in found
        if (of := manifest.id)
    )
    return sorted(made, key=lambda entry: entry.order)


def generations(connection: sa.Connection, home: str) -> dict[str, int]:
    known = sa.select(checkpoints.c.folder, checkpoints.c.generation).where(checkpoints.c.home == home)
    return {row.folder: row.generation for row in connection.execute(known)}


def recovery_point(connection: sa.Connection, home: str, *, before_step: int | None) -> Entry | None:
    before = facts.STEP_END if before_step is None else before_step
    row = connection.execute(RECOVERY, {"home": home, "before": before}).mappings().one_or_none()
    if row is None:
        return None
    manifest = manifest_of(row["manifest"])
    if manifest is None:  # a bit has flipped in the cache: the next best one is asked for in the long way
        return recovery.best(entries(connection, home), before_step=before_step)
    told = _by_step(connection, home, facts_table.c.step == manifest.step).get(manifest.step, [])
    of, chain = Link(id=manifest.id, parent=manifest.parent, seq=manifest.seq), _Chain(connection, home)
    return sql_columns.entry(dict(row), _values(told, lambda fact: holds(fact, of, chain)), manifest)


def read_sizes(connection: sa.Connection, home: str) -> dict[str, int]:
    rows = connection.execute(sa.select(journals.c.source, journals.c.size).where(journals.c.home == home))
    return {row.source: row.size for row in rows}


def starts(connection: sa.Connection, home: str) -> list[Start]:
    rows = connection.execute(sa.select(attempts).where(attempts.c.home == home).order_by(attempts.c.number))
    return [
        Start(
            number=row.number,
            time=row.time,
            host=row.host,
            pid=row.pid,
            came_from=row.told_from if row.came_from is None else row.came_from,
            ended=row.ended,
        )
        for row in rows
    ]


def homes(connection: sa.Connection) -> tuple[str, ...]:
    known = sa.union(*(sa.select(table.c.home) for table in (checkpoints, journals, attempts)))
    return tuple(sorted(connection.execute(known).scalars()))


class _Chain:
    """The chain of a task's checkpoints, asked for one at a time: a fact is told soon after what it is of."""

    def __init__(self, connection: sa.Connection, home: str) -> None:
        self._connection, self._home = connection, home

    def at(self, id: str) -> Link | None:
        columns = checkpoints.c
        one = sa.select(columns.id, columns.parent, columns.seq).where(columns.home == self._home, columns.id <= id)
        row = self._connection.execute(one.order_by(columns.id.desc()).limit(1)).one_or_none()
        return None if row is None else Link(id=row.id, parent=row.parent, seq=row.seq)


def _by_step(connection: sa.Connection, home: str, which: sa.ColumnElement[bool]) -> dict[int, list[Fact]]:
    """Late metrics, in the order in which they became known."""
    here = (which, facts_table.c.kind == "metrics", facts_table.c.home == home)
    found: dict[int, list[tuple[str, int, Fact]]] = {}
    for row in connection.execute(sa.select(facts_table).where(*here)):
        found.setdefault(row.step, []).append((row.source, row.number, fact_of(row)))
    return {step: facts.in_order(told) for step, told in found.items()}


def _values(told: list[Fact], holds: Callable[[Fact], bool]) -> list[dict[str, Any]]:
    return [dict(fact.values) for fact in told if holds(fact)]
