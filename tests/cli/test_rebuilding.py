"""`mementum rebuild`: the catalog is what the manifests say, whatever was there, whoever is using it."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from mementum.catalog.sql import SqlCatalog, is_no_database, open_sqlite
from mementum.cli import rebuilding
from mementum.errors import StoreError
from mementum.storage.disk import PosixDisk

OTHER_TABLES = "CREATE TABLE checkpoints (a); CREATE TABLE schema (b)"


def home(root: Path) -> str:
    (found,) = root.glob("*/*_??????")
    return str(found.relative_to(root))


def steps(root: Path) -> list[int]:
    """What the file says, with nobody to bring it up to date."""
    catalog = open_sqlite(root / "catalog.db")
    try:
        return [entry.manifest.step for entry in catalog.entries(home(root))]
    finally:
        catalog.close()


def checkpoints(root: Path) -> dict[str, bytes]:
    inside = (path for path in root.rglob("*") if path.is_file() and not path.name.startswith("catalog.db"))
    return {str(path): path.read_bytes() for path in inside}


def test_from_nothing(ask: Any, root: Path) -> None:
    for path in root.glob("catalog.db*"):
        path.unlink()
    before = checkpoints(root)
    answer = ask("rebuild", root)
    assert (answer.code, answer.err) == (0, "")
    assert answer.lines == ["byte-gpt: 3 checkpoints entered", f"{root / 'catalog.db'} was filled anew"]
    assert (steps(root), checkpoints(root)) == ([2, 4, 6], before)
    listed = json.loads(ask("ls", root, "--json").out)
    assert [one["metrics"]["loss"] for one in listed] == [0.5, 0.2, 0.9]  # facts were taken in as well


def test_what_is_wrong_in_it_goes(ask: Any, root: Path) -> None:
    with sqlite3.connect(root / "catalog.db") as connection:
        connection.execute("UPDATE checkpoints SET seq = 9, manifest = 'nonsense'")
        connection.execute("INSERT INTO journals VALUES ('20200101/gone_abcdef', 'journal/0001.jsonl', 7)")
    connection.close()
    assert ask("rebuild", root).code == 0
    connection = sqlite3.connect(root / "catalog.db")
    assert connection.execute("SELECT home FROM journals").fetchall() == [(home(root),)]
    assert connection.execute("SELECT seq FROM checkpoints ORDER BY seq").fetchall() == [(1,), (2,), (3,)]
    connection.close()


@pytest.mark.parametrize("garbage", ["text", "torn", "other tables", "link"])
def test_a_file_that_is_no_catalog_is_replaced(ask: Any, root: Path, tmp_path: Path, garbage: str) -> None:
    path = root / "catalog.db"
    if garbage == "text":
        path.write_bytes(b"not a database" * 400)
        path.with_name("catalog.db-wal").write_bytes(b"and its log")
    elif garbage == "torn":
        data = bytearray(path.read_bytes())
        data[4096:] = b"\xff" * len(data[4096:])
        path.write_bytes(data)
    elif garbage == "other tables":
        path.unlink()
        connection = sqlite3.connect(path)
        connection.executescript(OTHER_TABLES)
        connection.close()
    else:
        path.unlink()
        (tmp_path / "elsewhere").write_bytes(b"somebody's" * 200)
        path.symlink_to(tmp_path / "elsewhere")
    answer = ask("rebuild", root, "--json")
    assert answer.code == 0
    told = json.loads(answer.out)
    assert told["replaced"] is True
    assert [one["entered"] for one in told["tasks"]] == [3]
    assert steps(root) == [2, 4, 6]
    if garbage == "link":
        assert (tmp_path / "elsewhere").read_bytes() == b"somebody's" * 200


def test_a_database_in_use_is_not_replaced(ask: Any, root: Path) -> None:
    user = open_sqlite(root / "catalog.db")
    inode = (root / "catalog.db").stat().st_ino
    (entry, *_) = user.entries(home(root))
    user.forget(home(root), entry.folder)
    assert ask("rebuild", root).lines[-1].endswith("was filled anew")
    assert (root / "catalog.db").stat().st_ino == inode
    assert [each.manifest.step for each in user.entries(home(root))] == [2, 4, 6]
    user.forget(home(root), entry.folder)  # and it still can be written by who had it open
    assert steps(root) == [4, 6]
    user.close()


def test_a_locked_database_stays(ask: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mementum.catalog.sql.BUSY_TIMEOUT_S", 0.01)
    before = (root / "catalog.db").stat().st_ino
    connection = sqlite3.connect(root / "catalog.db", isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    answer = ask("rebuild", root)
    connection.execute("ROLLBACK")
    connection.close()
    assert (answer.code, (root / "catalog.db").stat().st_ino) == (1, before)
    assert "database is locked" in answer.err
    assert steps(root) == [2, 4, 6]


def test_a_folder_in_its_place_stays(ask: Any, root: Path) -> None:
    for path in root.glob("catalog.db*"):
        path.unlink()
    (root / "catalog.db").mkdir()
    answer = ask("rebuild", root)
    assert answer.code == 1
    assert "kept: all checkpoints" in answer.err
    assert (root / "catalog.db").is_dir()


def test_unreadable_manifests_are_named(ask: Any, root: Path) -> None:
    (root / home(root) / "step_0000000004" / "meta.json").write_bytes(b"{}")
    answer = ask("rebuild", root)
    assert answer.code == 3
    assert answer.lines[0] == "byte-gpt: 2 checkpoints entered"
    assert answer.lines[1].startswith(f"{home(root)}/step_0000000004/meta.json: ")
    assert steps(root) == [2, 6]
    told = json.loads(ask("rebuild", root, "--json").out)
    assert [one["key"] for one in told["tasks"][0]["unreadable"]] == [f"{home(root)}/step_0000000004/meta.json"]


def test_a_task_that_cannot_be_listed(ask: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise StoreError("step_", "step_: no permission")

    monkeypatch.setattr(rebuilding, "refresh", refuse)
    answer = ask("rebuild", root)
    assert answer.code == 1
    assert "could not be read to the end: step_: no permission" in answer.err


def test_a_folder_without_tasks(ask: Any, root: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert ask("rebuild", tmp_path / "empty").code == 4
    assert list((tmp_path / "empty").iterdir()) == []
    assert ask("rebuild", root / "none").code == 2
    assert json.loads(ask("rebuild", tmp_path / "empty", "--json").out)["error"]["exit_code"] == 4


def test_what_was_saved_meanwhile_is_taken_in(ask: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    become = SqlCatalog.become

    def save_first(catalog: SqlCatalog, other: SqlCatalog) -> None:
        inside = root / home(root)
        shutil.copytree(inside / "step_0000000006", inside / "step_0000000008")
        shutil.rmtree(inside / "step_0000000002")
        become(catalog, other)

    monkeypatch.setattr(SqlCatalog, "become", save_first)
    assert ask("rebuild", root).code == 0
    assert steps(root) == [4, 6, 6]


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("deleted", [0, 1, 2])
def test_killed_while_deleting(ask: Any, root: Path, monkeypatch: pytest.MonkeyPatch, deleted: int) -> None:
    """Whichever files are left, the next command works and the next rebuild is whole."""
    for suffix in ("", "-wal", "-shm"):
        (root / f"catalog.db{suffix}").write_bytes(b"no database" * 500)
    unlink, left = PosixDisk.unlink, [deleted]

    def dying(disk: PosixDisk, path: str) -> None:
        if not left[0]:
            raise Killed
        unlink(disk, path)
        left[0] -= 1

    monkeypatch.setattr(PosixDisk, "unlink", dying)
    with pytest.raises(Killed):
        rebuilding.delete(str(root / "catalog.db"), PosixDisk())
    monkeypatch.undo()
    assert (root / "catalog.db").exists()  # it goes last: no log is ever there without it
    assert [one["step"] for one in json.loads(ask("ls", root, "--json").out)] == [6, 4, 2]
    assert ask("rebuild", root).code == 0
    assert steps(root) == [2, 4, 6]


def test_which_errors_are_the_files_own() -> None:
    def caused(code: int) -> StoreError:
        cause = sqlite3.DatabaseError()
        cause.sqlite_errorcode = code
        wrapped = ValueError()
        wrapped.orig = cause  # type: ignore[attr-defined]
        error = StoreError("catalog.db", "")
        error.__cause__ = wrapped
        return error

    assert [code for code in range(30) if is_no_database(caused(code))] == [1, 11, 26]
    assert is_no_database(caused(11 | 1 << 8))
    assert not is_no_database(StoreError("a", "b"))


def test_where_no_rebuild_helps_another_command_is_told(ask: Any, root: Path) -> None:
    for path in root.glob("catalog.db*"):
        path.unlink()
    (root / "catalog.db").mkdir()
    answer = ask("rebuild", root)
    assert (answer.code, "unable to open database file" in answer.err) == (1, True)
    place = root / "catalog.db"
    assert f"next: `mv {place} {place}.old`: it is a folder; the next command makes the catalog\n" in answer.err
    place.rename(f"{place}.old")
    assert (ask("rebuild", root).code, steps(root)) == (0, [2, 4, 6])
