"""The catalog in SQL: by default SQLite in a file beside the checkpoints, or a PostgreSQL that many share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import StaticPool

from mementum.catalog import sql_engine, sql_reading, sql_schema, sql_writing
from mementum.catalog.sql_engine import SCHEMA_NAME
from mementum.catalog.sql_tables import CONTENTS
from mementum.catalog.sql_tables import SCHEMA as SCHEMA
from mementum.errors import StoreError
from mementum.format import manifest as manifests
from mementum.records import Entry, Fact, Manifest, Start

# What SQLite says of a file that cannot be this catalog: other tables (1), torn pages (11), no database at all (26).
NO_DATABASE = frozenset({1, 11, 26})
BUSY_TIMEOUT_S = 10.0  # another process writes for milliseconds at a time
TRIES = 3  # of a transaction: a broken connection is replaced at the second, and two rarely meet twice
LOCK = 0x6D656D  # the number of PostgreSQL's lock that a writer holds to its transaction's end
Result = TypeVar("Result")


class SqlCatalog:
    """A `Catalog` over SQLAlchemy. Safe to use from several threads and processes."""

    def __init__(self, engine: sa.Engine) -> None:
        """StoreError, of which Unreachable and AccessRefused are two, if the database cannot be used."""
        self._engine = engine
        # SQLite's transactions see one state of the database by themselves.
        one_state = {} if engine.dialect.name == "sqlite" else {"isolation_level": "REPEATABLE READ"}
        self._reading = engine.execution_options(**one_state)
        self._writing = engine.execution_options(writes=True)
        self._where = sql_engine.where(engine)
        # A database in memory is one connection, which can be in one transaction only.
        one = isinstance(engine.pool, StaticPool)
        self._turn: AbstractContextManager[object] = threading.Lock() if one else nullcontext()
        try:
            self._prepare()
        except BaseException:
            engine.dispose()
            raise

    def add(self, home: str, manifest: Manifest, folder: str) -> None:
        self.add_all(home, [(manifest, folder)])

    def add_all(self, home: str, found: Iterable[tuple[Manifest, str]]) -> None:
        self.add_texts(home, ((one, folder, manifests.render(one).decode()) for one, folder in found))

    def add_texts(self, home: str, found: Iterable[tuple[Manifest, str, str]]) -> None:
        """The same of manifests whose files were read: each with its folder and its text."""
        every = tuple(found)  # made before the transaction begins, and there again if it has to be tried again
        if every:
            self._write(lambda connection: sql_writing.enter(connection, home, every))

    def forget(self, home: str, folder: str) -> None:
        self._write(lambda connection: sql_writing.forget(connection, home, folder))

    def learn(self, home: str, source: str, told: Iterable[Fact], *, size: int, begin: int = 0) -> int:
        every = tuple(told)
        return self._write(
            lambda connection: sql_writing.learn(connection, home, source, every, size=size, begin=begin)
        )

    def learn_whole(self, home: str, found: Iterable[tuple[str, Sequence[Fact], int]]) -> None:
        """What many sources say, each with its size, in one transaction and in the place of all they said before."""
        every = tuple(found)
        if every:
            self._write(lambda connection: sql_writing.learn_whole(connection, home, every))

    def begin(self, home: str, start: Start) -> None:
        self._write(lambda connection: sql_writing.begin(connection, home, start))

    def read_sizes(self, home: str) -> dict[str, int]:
        return self._read(lambda connection: sql_reading.read_sizes(connection, home))

    def entries(self, home: str) -> Sequence[Entry]:
        return self._read(lambda connection: sql_reading.entries(connection, home))

    def recovery_point(self, home: str, *, before_step: int | None = None) -> Entry | None:
        return self._read(lambda connection: sql_reading.recovery_point(connection, home, before_step=before_step))

    def starts(self, home: str) -> Sequence[Start]:
        return self._read(lambda connection: sql_reading.starts(connection, home))

    def homes(self) -> tuple[str, ...]:
        return self._read(sql_reading.homes)

    def generations(self, home: str) -> dict[str, int]:
        """Which generation of which folder's manifest it knows, without reading any."""
        return self._read(lambda connection: sql_reading.generations(connection, home))

    def become(self, other: SqlCatalog) -> None:
        """Take the contents of another catalog and drop all else, in one transaction: nobody sees it half done."""

        def take(connection: sa.Connection) -> None:
            for table in CONTENTS:
                connection.execute(sa.delete(table))
                rows = source.execution_options(yield_per=sql_writing.BATCH).execute(sa.select(table)).mappings()
                for batch in rows.partitions():
                    connection.execute(sa.insert(table), [dict(row) for row in batch])

        with other._turn, other._engine.begin() as source:
            self._write(take)

    def damage(self) -> str | None:
        """What SQLite finds wrong with the file, all pages read, or None."""
        check = "PRAGMA integrity_check(1)"
        try:
            found = self._read(lambda connection: str(connection.exec_driver_sql(check).scalar()))
        except StoreError as error:
            if not is_no_database(error):
                raise
            return error.message
        return None if found == "ok" else found

    def close(self) -> None:
        self._engine.dispose()

    def _prepare(self) -> None:
        """Our tables. Nearly always they are there, and then nothing is locked."""
        if self._is_postgres:
            self._write(_make_schema, locked=False)
        if self._read(lambda connection: sql_schema.is_ours(connection, self._where)):
            return
        try:
            self._write(lambda connection: sql_schema.prepare(connection, self._where))
        except StoreError as error:
            if self._is_postgres or not isinstance(error.__cause__, SQLAlchemyError) or not is_no_database(error):
                raise
            self._write(sql_schema.anew)  # an older one that is not what it should be, which here is a file of our own

    @property
    def _is_postgres(self) -> bool:
        return self._engine.dialect.name == "postgresql"

    def _read(self, work: Callable[[sa.Connection], Result]) -> Result:
        """Do it in a transaction that sees one state of the database. What it cannot do becomes a StoreError."""
        return self._tried(self._reading, work)

    def _write(self, work: Callable[[sa.Connection], Result], *, locked: bool = True) -> Result:
        """Do it in a transaction that nobody else writes in: what follows from facts is made of all facts there are."""

        def alone(connection: sa.Connection) -> Result:
            if locked and self._is_postgres:
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(LOCK)))
            return work(connection)

        return self._tried(self._writing, alone)

    def _tried(self, engine: sa.Engine, work: Callable[[sa.Connection], Result]) -> Result:
        """All work here may be done twice: a transaction whose answer was lost may have succeeded."""
        tries = 1
        while True:
            try:
                with self._turn, engine.begin() as connection:
                    return work(connection)
            except SQLAlchemyError as error:
                if tries < TRIES and sql_engine.may_be_tried_again(error):
                    tries += 1
                    continue
                raise sql_engine.explained(error, self._engine) from error


def _make_schema(connection: sa.Connection) -> None:
    """A room of our own in a database of others. Looked for first, since making one needs a right that users lack."""
    if not sa.inspect(connection).has_schema(SCHEMA_NAME):
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(LOCK)))
        connection.execute(sa.schema.CreateSchema(SCHEMA_NAME, if_not_exists=True))


def is_no_database(error: StoreError) -> bool:
    """Whether the file itself is the fault. Else it is locked, not ours to write, or the disk refuses."""
    code = getattr(getattr(error.__cause__, "orig", None), "sqlite_errorcode", 0)
    return code & 0xFF in NO_DATABASE  # the low byte; what is above it tells cases of one error apart


def open_sqlite(path: Path | None) -> SqlCatalog:
    """The catalog in a file, or in memory."""
    if path is None:
        return SqlCatalog(sql_engine.memory_engine())
    return SqlCatalog(sql_engine.sqlite_engine(path, busy_s=BUSY_TIMEOUT_S))


def open_scratch() -> SqlCatalog:
    """A catalog of any size that is gone when it is closed."""
    return SqlCatalog(sql_engine.scratch_engine())


def open_sql(url: str) -> SqlCatalog:
    """The catalog in PostgreSQL, `postgresql://user@host:5432/database`. Unreachable, AccessRefused; UsageError if the
    address is none, or psycopg is not installed."""
    return SqlCatalog(sql_engine.postgres_engine(url))
