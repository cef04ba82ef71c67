"""An onlooker's disk changes nothing and remembers what it may not see."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mementum.cli.onlooking import Onlooker
from mementum.storage.local import LocalStore


def test_an_onlooker_changes_nothing(tmp_path: Path) -> None:
    disk, path = Onlooker(), str(tmp_path / "a")
    for change in (disk.create, disk.append, disk.unlink, disk.unlink_unused, disk.mkdir, disk.rmdir):
        with pytest.raises(AssertionError, match="by somebody who only looks"):
            change(path)
    for name in (disk.rename_new, disk.rename_over, disk.link):
        with pytest.raises(AssertionError):
            name(path, path)
    assert list(tmp_path.iterdir()) == []


def test_what_is_refused_looks_empty_and_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> os.stat_result:
        raise PermissionError(13, "Permission denied", path)

    (tmp_path / "a").write_bytes(b"x")
    disk = Onlooker()
    monkeypatch.setattr(os, "lstat", refuse)
    store = LocalStore(disk, str(tmp_path))
    assert list(store.list()) == []
    monkeypatch.undo()
    assert disk.refused == {str(tmp_path): "Permission denied", str(tmp_path / "a"): "Permission denied"} | {
        str(above): "Permission denied" for above in tmp_path.parents
    }
