"""Connections to databases: how they are opened, and what their errors mean."""

from __future__ import annotations

import re
import shlex
import sqlite3
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.pool import StaticPool

from mementum.errors import AccessRefused, StoreError, Unreachable, UsageError

CONNECT_S = 3  # a server that is there answers within milliseconds; one that is not must not keep a start waiting
STALLED_MS = 5000  # of bytes that nobody has acknowledged
LOCK_MS = 10_000  # another process writes for milliseconds at a time, a rebuild for a second
SCHEMA_NAME = "mementum"  # our tables have common names, and the database may be used for other things too
POOLED = 2  # connections; one thread writes, and another may read
CACHE_KIB = 65_536  # of a scratch catalog in memory, before it goes to a temporary file
# PostgreSQL's codes: no such user, wrong password; not allowed; not let into our schema; of a transaction that may be
# tried again.
REFUSED = ("28", "42501", "3F000")
AGAIN = ("40001", "40P01")
# SQLite's codes of what is around a file and not in it, so that no rebuild helps: leave to write, a read-only disk, a
# file that cannot be opened; a lock of another process; a disk that fails, or is full.
CLOSED = frozenset({sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN})
LOCKED = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
REFUSALS = re.compile(r"authentication failed|no password supplied|pg_hba\.conf|role \S+ (does not exist|is not perm)")


def sqlite_engine(path: Path, *, busy_s: float) -> sa.Engine:
    """A file, with a write-ahead log, so that readers and one writer do not wait."""
    url = sa.URL.create("sqlite", database=str(path))  # not as text, in which a `?` of the path would end it
    engine = sa.create_engine(url, connect_args={"timeout": busy_s, "check_same_thread": False})

    @sa.event.listens_for(engine, "connect")
    def _configure(connection: Any, _: Any) -> None:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")  # a cache: after a power cut it is made again

    return _with_transactions(engine)


def memory_engine() -> sa.Engine:
    """In memory, gone with its last user."""
    return _with_transactions(
        sa.create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    )


def scratch_engine() -> sa.Engine:
    """In memory as long as it is small, else in a temporary file without a name."""

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect("", check_same_thread=False)
        connection.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
        connection.execute("PRAGMA journal_mode=OFF")  # nobody reads it again after a failure
        return connection

    return _with_transactions(sa.create_engine("sqlite://", poolclass=StaticPool, creator=connect))


def postgres_engine(text: str) -> sa.Engine:
    """UsageError if the address is none, or what speaks to PostgreSQL is not installed."""
    try:
        url = sa.make_url(text)
    except (ArgumentError, ValueError) as error:  # neither is shown: it may hold a password
        raise UsageError(
            "the catalog's address is not a URL", next_command="catalog: postgresql://user@host:5432/database"
        ) from error
    if url.get_backend_name() != "postgresql":
        raise UsageError(
            f"{url.get_backend_name()}:// is no catalog", next_command="catalog: postgresql://user@host/db"
        )
    options = f"-c search_path={SCHEMA_NAME} -c lock_timeout={LOCK_MS}"
    try:
        return sa.create_engine(
            url.set(drivername="postgresql+psycopg"),
            pool_size=POOLED,
            pool_pre_ping=True,
            connect_args={"connect_timeout": CONNECT_S, "tcp_user_timeout": STALLED_MS, "options": options},
        )
    except ModuleNotFoundError as error:
        raise UsageError(
            "a catalog in PostgreSQL needs psycopg", next_command="pip install 'mementum[postgres]'"
        ) from error


def _with_transactions(engine: sa.Engine) -> sa.Engine:
    """Transactions of SQLite as it has them: one that is to write takes its turn at its beginning, so that what it has
    read still holds when it writes."""

    @sa.event.listens_for(engine, "connect")
    def _leave(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # else the driver begins them by itself, at the first write

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        writes = connection.get_execution_options().get("writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def may_be_tried_again(error: SQLAlchemyError) -> bool:
    """Whether the whole transaction may succeed at the next try: the connection broke, or two stood in each other's
    way."""
    if not isinstance(error, DBAPIError):
        return False
    return error.connection_invalidated or _code(error) in AGAIN


def where(engine: sa.Engine) -> str:
    """The database in words, without its password."""
    url = engine.url
    if url.get_backend_name() == "sqlite":
        return url.database or "in memory"
    at = f"{url.host or 'localhost'}{f':{url.port}' if url.port else ''}"
    return f"postgresql://{f'{url.username}@' if url.username else ''}{at}/{url.database or ''}"


def explained(error: SQLAlchemyError, engine: sa.Engine) -> StoreError:
    """What the database could not do, with what to do next. No message of ours holds a password."""
    place, cause = where(engine), getattr(error, "orig", None) or error
    kept = "all checkpoints: the catalog is only a cache of them"
    if engine.dialect.name == "sqlite":
        what = f"the catalog {place} cannot be used: {cause}"
        return StoreError(place, what, kept=kept, next_command=_mending(Path(place), cause))
    said = " ".join(str(cause).split())
    password = engine.url.password
    if password:
        said = said.replace(str(password), "***")
    if _code(error).startswith(REFUSED) or REFUSALS.search(said):
        user = f"the user {engine.url.username!r}" if engine.url.username else "a user without a name"
        host = engine.url.host or "localhost"
        what = f"{host} does not let {user} use the catalog {place}: {said}"
        return AccessRefused(place, what, kept=kept, next_command="correct user and password of `catalog`")
    if isinstance(error, DBAPIError) and isinstance(error, sa.exc.OperationalError | sa.exc.InternalError):
        what = f"the catalog {place} does not answer: {said}"
        return Unreachable(place, what, kept=kept, next_command="try again when the server is there")
    return StoreError(place, f"the catalog {place} cannot be used: {said}", kept=kept)


def _mending(path: Path, cause: object) -> str:
    """What helps against a failure of SQLite's. To make a file again helps only where the file is the fault."""
    code = getattr(cause, "sqlite_errorcode", 0) & 0xFF  # what is above the low byte tells cases of one error apart
    place, folder = shlex.quote(str(path)), shlex.quote(str(path.parent))
    if code in CLOSED and path.is_dir():
        return f"`mv {place} {place}.old`: it is a folder; the next command makes the catalog"
    if code in CLOSED:
        return f"`findmnt -T {folder}` shows whether it is mounted read-only, `ls -ld {folder} {place}` who may write"
    if code in LOCKED:
        return f"the same again, once the process is done that writes it; `fuser {place}` shows which that is"
    if code == sqlite3.SQLITE_FULL:
        return f"make room there; `df -h {folder}` shows how much is left"
    if code == sqlite3.SQLITE_IOERR:
        return f"look at the disk: `findmnt -T {folder}` shows which it is, and `dmesg` what is wrong with it"
    return "mementum rebuild ROOT makes it again from the manifests"


def _code(error: SQLAlchemyError) -> str:
    return str(getattr(getattr(error, "orig", None), "sqlstate", None) or "")
