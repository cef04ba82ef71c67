"""The catalog in SQL, by default SQLite in a file beside the checkpoints."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import StaticPool

from mementum.catalog import facts
from mementum.catalog.branch import Branches
from mementum.errors import MementumError, StoreError
from mementum.format import manifest as manifests
from mementum.format import typed_json
from mementum.records import Entry, Fact, Manifest

SCHEMA = 2  # of the tables; a file with another number is made anew, since all of it can be read again
# What SQLite says of a file that cannot be this catalog: other tables (1), torn pages (11), no database at all (26).
NO_DATABASE = frozenset({1, 11, 26})
BUSY_TIMEOUT_S = 10.0  # another process writes for milliseconds at a time

tables = sa.MetaData()
schema = sa.Table("schema", tables, sa.Column("version", sa.Integer, primary_key=True))
checkpoints = sa.Table(
    "checkpoints",
    tables,
    sa.Column("home", sa.String, primary_key=True),
    sa.Column("folder", sa.String, primary_key=True),
    sa.Column("id", sa.String, nullable=False, index=True),
    sa.Column("task", sa.String, nullable=False, index=True),
    sa.Column("seq", sa.Integer, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("step", sa.Integer, nullable=False),
    sa.Column("time", sa.String, nullable=False),
    sa.Column("reason", sa.String, nullable=False),
    sa.Column("granularity", sa.Integer, nullable=False),
    sa.Column("size", sa.Integer, nullable=False),
    sa.Column("manifest", sa.Text, nullable=False),
)
facts_table = sa.Table(
    "facts",
    tables,
    sa.Column("home", sa.String, primary_key=True),
    sa.Column("source", sa.String, primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("kind", sa.String, nullable=False),
    sa.Column("time", sa.String, nullable=False),
    sa.Column("checkpoint", sa.String),
    sa.Column("step", sa.Integer),
    sa.Column("data", sa.Text, nullable=False),
    sa.Index("facts_by_checkpoint", "home", "checkpoint", "kind"),
    sa.Index("facts_by_step", "home", "step", "kind"),
)
journals = sa.Table(
    "journals",
    tables,
    sa.Column("home", sa.String, primary_key=True),
    sa.Column("source", sa.String, primary_key=True),
    sa.Column("size", sa.Integer, nullable=False),
)


class SqlCatalog:
    """A `Catalog` over SQLAlchemy. Safe to use from several threads and processes."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        # A database in memory is one connection, which can be in one transaction only.
        one = isinstance(engine.pool, StaticPool)
        self._turn: AbstractContextManager[object] = threading.Lock() if one else nullcontext()
        with self._begin() as connection:
            tables.create_all(connection)
            found = connection.execute(sa.select(schema.c.version)).scalar()
            if found is None:
                connection.execute(sa.insert(schema).prefix_with("OR IGNORE", dialect="sqlite"), {"version": SCHEMA})
            elif found != SCHEMA:
                tables.drop_all(connection)
                tables.create_all(connection)
                connection.execute(sa.insert(schema), {"version": SCHEMA})

    def add(self, home: str, manifest: Manifest, folder: str) -> None:
        with self._begin() as connection:
            _forget(connection, home, folder)
            connection.execute(
                sa.insert(checkpoints),
                {
                    "home": home,
                    "folder": folder,
                    "id": manifest.id,
                    "task": manifest.task,
                    "seq": manifest.seq,
                    "attempt": manifest.attempt,
                    "step": manifest.step,
                    "time": manifest.time,
                    "reason": manifest.reason,
                    "granularity": int(manifest.granularity),
                    "size": manifest.size,
                    "manifest": manifests.render(manifest).decode(),
                },
            )

    def forget(self, home: str, folder: str) -> None:
        with self._begin() as connection:
            _forget(connection, home, folder)

    def learn(self, home: str, source: str, told: Iterable[Fact], *, size: int, begin: int = 0) -> None:
        rows = [
            {
                "home": home,
                "source": source,
                "number": begin + number,  # a fact takes more than a byte, so that those that follow sort behind it
                "kind": fact.kind,
                "time": fact.time,
                "checkpoint": fact.checkpoint,
                "step": fact.step,
                "data": json.dumps(typed_json.encode(dict(fact.values))),
            }
            for number, fact in enumerate(told)
        ]
        with self._begin() as connection:
            here = (facts_table.c.home == home, facts_table.c.source == source)
            connection.execute(sa.delete(facts_table).where(*here, facts_table.c.number >= begin))
            if rows:
                connection.execute(sa.insert(facts_table), rows)
            connection.execute(sa.delete(journals).where(journals.c.home == home, journals.c.source == source))
            connection.execute(sa.insert(journals), {"home": home, "source": source, "size": size})

    def read_sizes(self, home: str) -> dict[str, int]:
        with self._begin() as connection:
            rows = connection.execute(sa.select(journals.c.source, journals.c.size).where(journals.c.home == home))
            return {row.source: row.size for row in rows}

    def entries(self, home: str) -> Sequence[Entry]:
        with self._begin() as connection:
            rows = connection.execute(
                sa.select(checkpoints.c.folder, checkpoints.c.manifest).where(checkpoints.c.home == home)
            ).all()
            here = checkpoints.c.home == home
            # Two questions, each with an index of its own: most facts of a long run are of neither kind.
            of_step = facts_table.c.step.in_(sa.select(checkpoints.c.step).where(here))
            of_one = facts_table.c.checkpoint.in_(sa.select(checkpoints.c.id).where(here))
            late = _by(connection, home, ("metrics",), of_step, lambda row: row.step)
            judging = _by(connection, home, facts.JUDGING, of_one, lambda row: row.checkpoint)
        found = [(row.folder, _manifest(row.manifest)) for row in rows]
        branches = Branches(manifest for _, manifest in found if manifest is not None)
        entries = [
            _entry(
                folder,
                manifest,
                [fact for fact in late.get(manifest.step, []) if branches.holds(fact, manifest.id)],
                judging.get(manifest.id, []),
            )
            for folder, manifest in found
            if manifest is not None
        ]
        return sorted(entries, key=lambda entry: entry.order)

    def become(self, other: SqlCatalog) -> None:
        """Take the contents of another catalog and drop all else, in one transaction: nobody sees it half done."""
        contents = (checkpoints, facts_table, journals)
        with other._begin() as connection:
            rows = [[dict(row._mapping) for row in connection.execute(sa.select(table))] for table in contents]
        with self._begin() as connection:
            for table, held in zip(contents, rows, strict=True):
                connection.execute(sa.delete(table))
                if held:
                    connection.execute(sa.insert(table), held)

    def damage(self) -> str | None:
        """What SQLite finds wrong with the file, all pages read, or None."""
        try:
            with self._begin() as connection:
                found = str(connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar())
        except StoreError as error:
            if not is_no_database(error):
                raise
            return error.message
        return None if found == "ok" else found

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def _begin(self) -> Iterator[sa.Connection]:
        """A transaction. What the database cannot do becomes a StoreError that names it."""
        try:
            with self._turn, self._engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            where = self._engine.url.database or "in memory"
            raise StoreError(
                where,
                f"the catalog {where} cannot be used: {getattr(error, 'orig', None) or error}",
                kept="all checkpoints: the catalog is only a cache of them",
                next_command="mementum rebuild ROOT makes it again from the manifests",
            ) from error


def is_no_database(error: StoreError) -> bool:
    """Whether the file itself is the fault. Else it is locked, not ours to write, or the disk refuses."""
    code = getattr(getattr(error.__cause__, "orig", None), "sqlite_errorcode", 0)
    return code & 0xFF in NO_DATABASE  # the low byte; what is above it tells cases of one error apart


def _forget(connection: sa.Connection, home: str, folder: str) -> None:
    connection.execute(sa.delete(checkpoints).where(checkpoints.c.home == home, checkpoints.c.folder == folder))


def _by(
    connection: sa.Connection,
    home: str,
    kinds: tuple[str, ...],
    which: sa.ColumnElement[bool],
    key: Callable[[Any], Any],
) -> dict[Any, list[Fact]]:
    """Facts by what they are of, in the order in which they became known."""
    rows = connection.execute(
        sa.select(facts_table).where(which, facts_table.c.kind.in_(kinds), facts_table.c.home == home)
    )
    found: dict[Any, list[tuple[str, int, Fact]]] = {}
    for row in rows:
        found.setdefault(key(row), []).append((row.source, row.number, _fact(row)))
    return {one: facts.in_order(told) for one, told in found.items()}


def _manifest(text: str) -> Manifest | None:
    """None for what cannot be read: it is as if it were not here, so that a refresh reads the file itself again."""
    try:
        return manifests.parse(text.encode())
    except (MementumError, AttributeError):  # the last where the database gives something that is no text
        return None


def _entry(folder: str, manifest: Manifest, late: Sequence[Fact], judging: Sequence[Fact]) -> Entry:
    metrics: dict[str, float] = dict(manifest.metrics)
    for fact in late:
        metrics.update(fact.values)
    known = facts.known(judging)
    return Entry(
        manifest=manifest,
        folder=folder,
        metrics=metrics,
        damaged=known.damaged,
        verified=known.verified,
        judged=known.judged,
        judged_why=known.judged_why,
        pinned=known.pinned,
        pinned_by=known.pinned_by,
    )


def _fact(row: Any) -> Fact:
    return Fact(kind=row.kind, time=row.time, checkpoint=row.checkpoint, step=row.step, values=_values(row.data))


def _values(data: str) -> dict[str, Any]:
    """Nothing for what cannot be read: a bit that flipped in a cache must not stop a training."""
    try:
        values = typed_json.decode(json.loads(data))
    except (ValueError, TypeError, RecursionError, MementumError):
        return {}
    return values if isinstance(values, dict) else {}


def open_sqlite(path: Path | None) -> SqlCatalog:
    """The catalog in a file (write-ahead log, so that readers and one writer do not wait), or in memory."""
    if path is None:
        return SqlCatalog(
            sa.create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
        )
    url = sa.URL.create("sqlite", database=str(path))  # not as text, in which a `?` of the path would end it
    engine = sa.create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S, "check_same_thread": False})

    @sa.event.listens_for(engine, "connect")
    def _configure(connection: Any, _: Any) -> None:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")  # a cache: after a power cut it is made again

    return SqlCatalog(engine)
