"""The catalog lies beside a root on a local disk, else in the user's cache folder."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from mementum.catalog.place import REMOTE, catalog_path, file_system
from mementum.catalog.rebuild import refresh
from mementum.events import Event
from mementum.format import manifest as manifests
from mementum.opening import open_catalog
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore
from mementum.testing.catalog_contract import HOME, manifest


class Mount(NamedTuple):
    mountpoint: str
    fstype: str


@pytest.fixture
def mounts(monkeypatch: pytest.MonkeyPatch) -> list[Mount]:
    found = [Mount("/", "ext4")]

    def partitions(*, all: bool) -> list[Mount]:
        assert all, "network file systems are no physical devices"
        return found

    monkeypatch.setattr(psutil, "disk_partitions", partitions)
    return found


def test_the_deepest_mount_counts_and_of_two_on_one_place_the_later(mounts: list[Mount], tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    assert file_system(inner) == "ext4"
    mounts += [Mount(str(tmp_path / "a"), "xfs"), Mount(str(tmp_path), "nfs4")]
    assert file_system(inner) == "xfs"
    assert file_system(tmp_path / "a") == "xfs"
    assert file_system(tmp_path / "ab") == "nfs4"
    mounts.append(Mount(str(tmp_path / "a"), "tmpfs"))
    assert file_system(inner) == "tmpfs"


def test_a_link_into_another_file_system_is_followed(mounts: list[Mount], tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "near").symlink_to(tmp_path / "far")
    mounts.append(Mount(str(tmp_path / "far"), "nfs"))
    assert file_system(tmp_path / "near" / "root") == "nfs"


def test_without_mounts_the_system_tells_nothing(mounts: list[Mount], tmp_path: Path) -> None:
    mounts.clear()
    assert file_system(tmp_path) == ""
    assert catalog_path(tmp_path) == tmp_path / "catalog.db"


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay"])
def test_beside_a_local_root(mounts: list[Mount], tmp_path: Path, kind: str) -> None:
    mounts.append(Mount(str(tmp_path), kind))
    assert catalog_path(tmp_path / "root") == tmp_path / "root" / "catalog.db"


@pytest.mark.parametrize("kind", [*sorted(REMOTE), "fuse", "fuse.sshfs", "fuse.s3fs"])
def test_in_the_users_cache_for_a_root_on_the_network(
    mounts: list[Mount], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    mounts.append(Mount(str(tmp_path / "far"), kind))
    found = catalog_path(tmp_path / "far" / "a")
    assert found.parent == tmp_path / "cache" / "mementum"
    assert found.parent.is_dir()
    assert found.suffix == ".db"
    assert found == catalog_path(tmp_path / "far" / "x" / ".." / "a")
    assert found != catalog_path(tmp_path / "far" / "b")


@pytest.mark.parametrize("cache", [None, ""])
def test_the_cache_is_in_the_home_folder_if_nothing_is_said(
    mounts: list[Mount], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: str | None
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if cache is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", cache)
    mounts.append(Mount(str(tmp_path), "nfs"))
    assert catalog_path(tmp_path).parent == tmp_path / "home" / ".cache" / "mementum"


def test_a_catalog_of_a_root_on_the_network_works_in_the_cache(
    mounts: list[Mount], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    mounts.append(Mount(str(tmp_path / "far"), "nfs4"))
    root, told = tmp_path / "far", list[Event]()
    store = LocalStore(PosixDisk(), str(root / HOME))
    store.put("step_0000000010/meta.json", [manifests.render(manifest(1))])
    for _ in range(2):
        catalog = open_catalog(root, emit=told.append)
        assert refresh(catalog, HOME, store) == ()
        assert [entry.manifest for entry in catalog.entries(HOME)] == [manifest(1)]
        catalog.close()
    assert told == []
    assert not list(root.glob("catalog.db*"))
    assert [path.name for path in (tmp_path / "cache" / "mementum").glob("*.db")] == [catalog_path(root).name]
