"""Opening a task: roots that are none, leftovers of the dead, and catalogs in every state of ruin."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mementum
from mementum.catalog.place import NAME
from mementum.errors import StoreError, TaskInUse, UsageError
from mementum.events import Committed, Failed, Note, Removed, Swept
from trips import Told, files


def save(root: Path, count: int = 1, **wishes: Any) -> Told:
    told = Told()
    with mementum.open_run(root, task="t", state={"s": {}}, every_steps=1, on_event=told, **wishes) as run:
        for _ in range(count):
            run.record()
            run.wait()
    return told


def garbage(path: Path) -> None:
    path.write_bytes(b"this is no database " * 500)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def gone(path: Path) -> None:
    path.unlink()


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def overwritten(path: Path) -> None:
    """The head says that it is a database, and the rest is noise."""
    data = path.read_bytes()
    path.write_bytes(data[:100] + b"\xa5" * (len(data) - 100))


def older(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("UPDATE schema SET version = 0")
    database.close()


def without_a_table(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE checkpoints")
    database.close()


def without_a_column(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("ALTER TABLE checkpoints DROP COLUMN manifest")
    database.close()


RUINS = [garbage, empty, gone, a_folder, torn, overwritten, older, without_a_table, without_a_column]


@pytest.mark.parametrize("ruin", RUINS, ids=lambda ruin: ruin.__name__)
def test_a_catalog_in_ruins_is_only_a_cache(tmp_path: Path, ruin: Callable[[Path], None]) -> None:
    save(tmp_path, 3, keep_last=2)
    for path in tmp_path.glob(f"{NAME}-*"):
        path.unlink()
    ruin(tmp_path / NAME)
    told = Told()
    with mementum.open_run(tmp_path, task="t", state={"s": {}}, on_event=told, keep_last=2, resume="must") as run:
        assert run.step == 3
        run.record()
        run.save()
        run.wait()
        assert [entry.manifest.step for entry in run._opened.catalog.entries(run._opened.home)] == [3, 4]
    assert [event.step for event in told.of(Committed)] == [4]
    assert told.of(Failed) == []
    assert sorted(path.parent.name[-2:] for path in tmp_path.rglob("meta.json")) == ["03", "04"]


def test_a_catalog_that_breaks_while_a_run_is_under_way(tmp_path: Path) -> None:
    told = Told()
    wishes = {"every_steps": 1, "keep_last": 2, "on_event": told}
    with mementum.open_run(tmp_path, task="t", state={"s": {}}, **wishes) as run:
        run.record()
        run.wait()
        with sqlite3.connect(tmp_path / NAME) as database:
            database.execute("DROP TABLE checkpoints")
        database.close()
        for _ in range(4):
            run.record()
            run.wait()
    assert [event.step for event in told.of(Committed)] == [1, 2, 3, 4, 5]
    assert [event.step for event in told.of(Removed)] == [1, 2, 3]
    assert told.of(Failed) == []
    assert ["it is kept in memory" in event.text for event in told.of(Note)] == [True]
    with mementum.open_run(tmp_path, task="t", state={"s": {}}, resume="must") as run:
        assert run.step == 5
        assert [entry.manifest.step for entry in run._opened.catalog.entries(run._opened.home)] == [4, 5]


def test_a_catalog_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    told = save(tmp_path)
    assert any("is kept in memory, saving goes on" in event.text for event in told.of(Note))
    assert [event.step for event in told.of(Committed)] == [1]


@pytest.mark.parametrize("root", ["", "a\0b", "s3://bucket/x", "gs://b", 3])
def test_roots_that_are_none_are_refused(root: Any) -> None:
    with pytest.raises((UsageError, TypeError)):
        mementum.open_run(root, task="t", state={"s": {}})


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for root in (file, file / "below"):
        with pytest.raises(StoreError):
            mementum.open_run(root, task="t", state={"s": {}})
    assert file.read_text() == "mine"


def test_a_root_is_made_with_all_folders_above_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with mementum.open_run("~/a/größe/c", task="t", state={"s": {}}) as run:
        run.record()
    assert len(list((tmp_path / "a" / "größe" / "c").rglob("meta.json"))) == 1


def test_what_the_dead_left_half_done_is_removed_and_nothing_else(tmp_path: Path) -> None:
    save(tmp_path, 2)
    (manifest, _) = sorted(tmp_path.rglob("meta.json"))
    home = manifest.parent.parent
    kept = files(tmp_path)
    mine = {home / "step_0000000001" / "notes.txt", home / "step_0000000009" / "README", tmp_path / "plan.md"}
    for path in mine:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    for name in (
        "step_0000000009/model.safetensors",
        "step_0000000009/index-00000.json",
        "step_0000000002/x.1a2b3c4d.tmp",
    ):
        (home / name).write_bytes(b"half")
    told = save(tmp_path, 0)
    (swept,) = told.of(Swept)
    assert sorted(swept.keys) == [
        "step_0000000002/x.1a2b3c4d.tmp",
        "step_0000000009/index-00000.json",
        "step_0000000009/model.safetensors",
    ]
    assert all(path.read_text() == "mine" for path in mine)
    assert set(kept) <= set(files(tmp_path))


def test_a_task_that_is_in_use_is_not_swept(tmp_path: Path) -> None:
    with mementum.open_run(tmp_path, task="t", state={"s": {}}) as run:
        run.record()
        home = tmp_path / run._opened.home
        (home / "step_0000000009").mkdir()
        (home / "step_0000000009" / "model.safetensors").write_bytes(b"being written")
        with pytest.raises(TaskInUse):
            mementum.open_run(tmp_path, task="t", state={"s": {}})
        assert (home / "step_0000000009" / "model.safetensors").exists()
        (home / "step_0000000009" / "model.safetensors").unlink()


def test_every_start_is_an_attempt_of_its_own(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        with mementum.open_run(tmp_path, task="t", state={"s": {}}) as run:
            assert run._opened.attempt.number == number
            run.record()
    with mementum.open_run(tmp_path, task="t", state={"s": {}}) as run:
        found = [entry.manifest for entry in run._opened.catalog.entries(run._opened.home)]
    assert [(manifest.attempt, manifest.seq, manifest.step) for manifest in found] == [(1, 1, 1), (2, 2, 2), (3, 3, 3)]
    assert [manifest.parent for manifest in found] == [None, found[0].id, found[1].id]
