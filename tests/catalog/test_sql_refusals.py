"""What SQLite refuses for what is around a file is told with what helps, which no rebuild is."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from mementum.catalog.sql import open_sqlite
from mementum.catalog.sql_engine import explained, sqlite_engine
from mementum.errors import StoreError

MOUNTED = "`findmnt -T '{folder}'` shows whether it is mounted read-only, `ls -ld '{folder}' '{place}'` who may write"


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    place = tmp_path / "a b" / "catalog.db"
    with pytest.raises(StoreError, match="unable to open database file") as caught:
        open_sqlite(place)
    assert caught.value.next_command == MOUNTED.format(folder=place.parent, place=place)


@pytest.mark.parametrize(
    ("code", "helps"),
    [
        (sqlite3.SQLITE_READONLY, MOUNTED),
        (sqlite3.SQLITE_READONLY_DBMOVED, MOUNTED),
        (sqlite3.SQLITE_PERM, MOUNTED),
        (sqlite3.SQLITE_BUSY, "the same again, once the process is done that writes it; `fuser '{place}'` shows which"),
        (sqlite3.SQLITE_FULL, "make room there; `df -h '{folder}'` shows how much is left"),
        (sqlite3.SQLITE_IOERR_WRITE, "look at the disk: `findmnt -T '{folder}'` shows which it is"),
        (sqlite3.SQLITE_NOTADB, "mementum rebuild ROOT makes it again from the manifests"),
        (sqlite3.SQLITE_CORRUPT, "mementum rebuild ROOT makes it again from the manifests"),
        (sqlite3.SQLITE_ERROR, "mementum rebuild ROOT makes it again from the manifests"),
    ],
)
def test_each_refusal_has_what_helps(tmp_path: Path, code: int, helps: str) -> None:
    place = tmp_path / "a b" / "catalog.db"
    cause = sqlite3.OperationalError("refused")
    cause.sqlite_errorcode = code
    engine = sqlite_engine(place, busy_s=0.0)
    error = explained(OperationalError("SELECT 1", {}, cause), engine)
    engine.dispose()
    assert error.message == f"the catalog {place} cannot be used: refused"
    assert str(error.next_command).startswith(helps.format(folder=place.parent, place=place))
