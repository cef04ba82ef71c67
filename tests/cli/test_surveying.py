"""What stands around the checkpoints of a root, as `mementum doctor` tells it."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mementum.records import Usage
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore


def of_kind(findings: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = [one for one in findings if one["kind"] == kind]
    return found


def home(root: Path) -> Path:
    (found,) = root.glob("*/*_??????")
    return found


def folder(root: Path, step: int) -> Path:
    return home(root) / f"step_{step:010d}"


def rewrite_claim(root: Path, **fields: object) -> None:
    path = home(root) / "attempts" / "0001.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_a_task_in_use(diagnosed: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder(root, 6) / "meta.json").unlink()
    hold = LocalStore(PosixDisk(), str(home(root))).hold("attempts/0001.json")
    assert hold is not None
    code, findings = diagnosed(root)
    found = of_kind(findings, "held")
    assert (code, found["severity"]) == (0, "note")
    assert f"by process {os.getpid()} on " in found["what"]
    assert found["next"].endswith(f"(kill {os.getpid()})")
    assert "a save that is under way looks the same" in of_kind(findings, "leftovers")["what"]
    monkeypatch.setattr("mementum.execute.identity.started", lambda pid: None)
    assert of_kind(diagnosed(root)[1], "held")["severity"] == "warning"
    hold.release()
    assert of_kind(diagnosed(root)[1], "free")["severity"] == "ok"


def test_a_lock_that_may_not_be_tried(diagnosed: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(disk: PosixDisk, path: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(PosixDisk, "lock", refuse)
    found = of_kind(diagnosed(root)[1], "lock-unknown")
    assert found["severity"] == "warning"
    assert "and that process is alive" in found["what"]


def test_leftovers(diagnosed: Any, root: Path) -> None:
    (folder(root, 6) / "meta.json").unlink()
    (folder(root, 4) / "model.safetensors.0a1b2c3d.tmp").write_bytes(b"half")
    code, findings = diagnosed(root)
    found = of_kind(findings, "leftovers")
    assert (code, found["severity"]) == (0, "note")
    assert found["what"].startswith("5 files of saves or removals that did not end, in step_0000000004, step_")


def test_what_is_not_ours(diagnosed: Any, root: Path) -> None:
    (root / "notes").mkdir()
    (root / "20261130").mkdir(exist_ok=True)
    (home(root).parent / "scratch").write_bytes(b"")
    (home(root) / "tensorboard").mkdir()
    found = of_kind(diagnosed(root)[1], "foreign")
    assert found["what"].startswith("3 names in the root that mementum never makes, and leaves alone: notes/, ")


def test_a_task_with_two_folders(diagnosed: Any, root: Path) -> None:
    shutil.copytree(home(root), root / "20990101" / home(root).name)
    found = of_kind(diagnosed(root)[1], "doubled")
    assert found["what"].startswith("20990101/byte-gpt_")


def test_a_task_without_a_name(diagnosed: Any, root: Path) -> None:
    (root / "20200101" / "thing_abcdef").mkdir(parents=True)
    code, findings = diagnosed(root)
    assert (code, of_kind(findings, "nameless")["severity"]) == (4, "warning")
    assert of_kind(findings, "never-started")["task"] == "20200101/thing_abcdef"


def test_no_leave_to_write(diagnosed: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK | os.X_OK and access(path, mode))
    code, findings = diagnosed(root)
    found = of_kind(findings, "permission")
    assert (code, found["next"]) == (1, f"ls -ld {root}")
    assert "this user may not write in 5 folders" in found["what"]


def test_no_leave_to_look(diagnosed: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listdir = PosixDisk.listdir

    def refuse(disk: PosixDisk, path: str) -> list[str]:
        if path.rstrip("/").endswith("step_0000000006"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return listdir(disk, path)

    monkeypatch.setattr(PosixDisk, "listdir", refuse)
    code, findings = diagnosed(root)
    found = of_kind(findings, "refused")
    assert (code, found["what"]) == (
        1,
        f"{folder(root, 6)} could not be looked at, and a start may stop there: Permission denied",
    )
    assert "step 4 " in of_kind(findings, "resumes")["what"]


def test_a_manifest_that_may_not_be_read(diagnosed: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = PosixDisk.read

    def refuse(disk: PosixDisk, path: str, start: int = 0, size: int | None = None) -> bytes:
        if path.endswith(("step_0000000006/meta.json", "0001.jsonl", "catalog.db")):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return read(disk, path, start, size)

    monkeypatch.setattr(PosixDisk, "read", refuse)
    code, findings = diagnosed(root)
    assert (code, of_kind(findings, "refused")["severity"]) == (1, "problem")
    assert of_kind(findings, "catalog")["severity"] == "warning"


def test_a_disk_that_is_nearly_full(diagnosed: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = Usage(used=0, size=1000)
    monkeypatch.setattr(PosixDisk, "usage", lambda disk, folder: usage)
    code, findings = diagnosed(root)
    assert (code, of_kind(findings, "space")["severity"]) == (0, "warning")
    assert of_kind(findings, "space")["what"].startswith("1000 B are free, and the newest checkpoint has ")
    for used, severity, what in (
        (85, "note", "85%: a run removes what is"),
        (95, "warning", "95%: where nothing can go"),
    ):
        usage = Usage(used=used * 10**7, size=10**9)
        code, findings = diagnosed(root)
        assert (code, of_kind(findings, "space")["severity"]) == (0, severity)
        assert f"the disk is used to {what}" in of_kind(findings, "space")["what"]


def test_a_network_file_system(diagnosed: Any, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("mementum.catalog.place.file_system", lambda path: "nfs4")
    monkeypatch.setattr("mementum.cli.surveying.file_system", lambda path: "nfs4")
    (home(root) / "attempts" / "0001.lease-4").write_bytes(b"")
    rewrite_claim(root, host="far", boot="another", lease_s=60)
    code, findings = diagnosed(root)
    assert (code, of_kind(findings, "network")["severity"]) == (0, "note")
    assert of_kind(findings, "catalog")["what"].startswith("there is no catalog yet")
    assert "on far, and a start waits up to 120 s for its lease to lapse" in of_kind(findings, "held")["what"]


@pytest.mark.parametrize("garbage", [b"no database at all", b"\0" * 8192, b"SQLite format 3\0" + b"\xff" * 4080])
def test_a_catalog_that_is_garbage(diagnosed: Any, root: Path, garbage: bytes) -> None:
    (root / "catalog.db").write_bytes(garbage)
    code, findings = diagnosed(root)
    found = of_kind(findings, "catalog")
    assert (code, found["next"]) == (0, f"mementum rebuild {root}")
    assert found["severity"] in ("warning", "note")


def test_a_catalog_that_lags_behind(diagnosed: Any, root: Path) -> None:
    shutil.rmtree(folder(root, 2))
    shutil.copytree(folder(root, 4), home(root) / "step_0000000008")
    found = of_kind(diagnosed(root)[1], "catalog")
    assert "it lacks 1 checkpoint and has 1 that are gone" in found["what"]


def test_a_catalog_that_a_newer_version_made(diagnosed: Any, ask: Any, root: Path) -> None:
    """To make it anew is what it forbids: who uses the newer one has it still."""
    with closing(sqlite3.connect(root / "catalog.db")) as connection, connection:
        connection.execute("UPDATE schema SET version = 99")
    found = of_kind(diagnosed(root)[1], "catalog")
    assert (found["severity"], found["next"]) == ("warning", "pip install --upgrade mementum")
    assert found["what"].startswith(
        f"the catalog {root / 'catalog.db'} cannot be read: the catalog catalog.db was made"
    )
    assert f"next: {found['next']}" in ask("rebuild", root).err


def test_a_folder_in_the_place_of_the_catalog(diagnosed: Any, root: Path) -> None:
    for path in root.glob("catalog.db*"):
        path.unlink()
    (root / "catalog.db").mkdir()
    code, findings = diagnosed(root)
    found = of_kind(findings, "catalog")
    assert (code, found["severity"]) == (0, "warning")
    assert found["next"] == f"mv {root / 'catalog.db'} {root / 'catalog.db'}.old"
