"""How full a disk is, as `df` tells it, and bytes with several names once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mementum.errors import StoreError
from mementum.records import Usage
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore
from mementum.testing.faults import FailingDisk
from mementum.testing.simdisk import SimDisk
from mounts import Mounted

MIB = 1 << 20


def test_a_file_system_of_its_own(mount: Callable[[int], Mounted]) -> None:
    disk = mount(16 * MIB)
    empty = PosixDisk().usage(str(disk.folder))
    (disk.folder / "file").write_bytes(bytes(4 * MIB))
    os.link(disk.folder / "file", disk.folder / "the same")
    usage = PosixDisk().usage(str(disk.folder))
    assert usage.size == empty.size
    assert usage.used - empty.used == 4 * MIB
    told = shutil.disk_usage(disk.folder)
    assert (usage.used, usage.free) == (told.used, told.free)


def test_what_only_root_may_use_is_neither_used_nor_free(monkeypatch: pytest.MonkeyPatch) -> None:
    status = os.statvfs_result((4096, 1024, 1000, 400, 350, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda folder: status)
    assert PosixDisk().usage("/anywhere") == Usage(used=600 * 1024, size=950 * 1024)


def test_a_store_that_is_not_there_yet(tmp_path: Path) -> None:
    usage = LocalStore(PosixDisk(), f"{tmp_path}/not/there").usage()
    assert 0 < usage.used < usage.size
    with pytest.raises(FileNotFoundError):
        PosixDisk().usage(f"{tmp_path}/not/there")


def test_a_store_whose_disk_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(disk: PosixDisk, folder: str) -> Usage:
        raise OSError(5, "Input/output error", folder)

    monkeypatch.setattr(PosixDisk, "usage", fail)
    with pytest.raises(StoreError, match="input/output error"):
        LocalStore(PosixDisk(), str(tmp_path)).usage()


def test_the_simulated_disk_counts_what_has_two_names_once() -> None:
    disk = SimDisk()
    disk.capacity = 1000
    store = LocalStore(FailingDisk(disk, 1000), "/s")
    store.put("a/one", [bytes(300)])
    assert store.link("a/one", "b/two")
    store.put("b/three", [bytes(50)])
    assert store.usage() == Usage(used=350, size=1000)
    store.delete("a/one")
    assert store.usage().free == 650
    store.delete("b/two")
    assert store.usage() == disk.usage("") == Usage(used=50, size=1000)
