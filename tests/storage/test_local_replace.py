"""A replaced object is the old one or the new one after every power cut, death and failure of a disk."""

import errno
import inspect
import itertools
import os

import pytest

from mementum.errors import KeyTaken, StoreError
from mementum.storage import local
from mementum.storage.disk import Disk, PosixDisk
from mementum.storage.local import LocalStore
from mementum.testing.choices import power_cuts
from mementum.testing.faults import FailingDisk
from mementum.testing.simdisk import SimDisk

OLD, NEW = b"damaged", b"as the manifest says"
HALVES = (NEW[:5], NEW[5:])


def names_under(disk: Disk, folder: str = "root") -> list[str]:
    found: list[str] = []
    for name in disk.listdir(folder):
        found.append(f"{folder}/{name}")
        if name.endswith("/"):
            found += names_under(disk, f"{folder}/{name[:-1]}")
    return found


def replace(disk: SimDisk, acknowledged: set[str]) -> None:
    store = LocalStore(disk, "root")
    store.put("f/a", [OLD])
    acknowledged.add("put")
    store.replace("f/a", HALVES)
    acknowledged.add("replaced")
    store.replace("g/b", HALVES)
    acknowledged.add("made")


def violation(*, journaled: bool) -> tuple[int, str | None]:
    """How many survivors were tried, and the first that breaks a promise."""
    tried = 0
    for cut, acknowledged, survivor in power_cuts(replace, journaled=journaled):
        tried += 1
        store = LocalStore(survivor, "root")
        found = {stat.key: bytes(store.get(stat.key)) for stat in store.list()}
        if "put" in acknowledged and found.get("f/a") != NEW:
            if "replaced" in acknowledged:
                return tried, f"cut {cut}: {found} after the new one was acknowledged"
            if found.get("f/a") != OLD:
                return tried, f"cut {cut}: {found} is neither the old one nor the new one"
        if found.get("g/b") not in ((NEW,) if "made" in acknowledged else (NEW, None)):
            return tried, f"cut {cut}: {found} is no whole new one"
        store.sweep()
        left = [name for name in names_under(survivor) if name.endswith(".tmp")]
        if left:
            return tried, f"cut {cut}: {left} left"
    return tried, None


@pytest.mark.parametrize("journaled", [False, True])
def test_a_replaced_object_survives_every_power_cut(journaled):
    tried, seen = violation(journaled=journaled)
    assert seen is None
    assert 40 < tried < 200


@pytest.mark.parametrize("journaled", [False, True])
@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("file.fsync()\n            self._disk.rename_over", "self._disk.rename_over"),
        ("self._disk.fsync_dir(folder)\n        return size", "return size"),
        ("self._disk.rename_over(new, path)", "self._disk.unlink(path); self._disk.rename_new(new, path)"),
    ],
)
def test_each_durable_effect_is_needed(monkeypatch, line, instead, journaled):
    source = inspect.getsource(local)
    assert source.count(line) == 1
    planted = dict(vars(local))
    exec(compile(source.replace(line, instead), local.__file__, "exec"), planted)
    monkeypatch.setitem(globals(), "LocalStore", planted["LocalStore"])
    _, seen = violation(journaled=journaled)
    assert seen is not None


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_failing_disk_leaves_one_of_both_whole(number):
    found = []
    for fail_at in itertools.count():
        sim = SimDisk()
        LocalStore(sim, "root").put("f/a", [OLD])
        disk = FailingDisk(sim, fail_at, OSError(number, os.strerror(number)))
        store = LocalStore(disk, "root")
        caught: StoreError | None = None
        try:
            store.replace("f/a", HALVES)
        except StoreError as error:
            caught = error
        assert not [name for name in names_under(sim) if name.endswith(".tmp")]
        if not disk.failed:
            break
        assert caught is not None
        assert (caught.key, caught.kept) == ("f/a", "older checkpoints")
        found.append(bytes(store.get("f/a")))
        store.replace("f/a", HALVES)
        assert store.get("f/a") == NEW
    assert found == [OLD] * 7 + [NEW]  # two folders, create, two writes, fsync, rename; only then the folder's fsync


@pytest.mark.parametrize("disk", [PosixDisk(), SimDisk()], ids=lambda disk: type(disk).__name__)
def test_a_folder_is_not_replaced(tmp_path, disk):
    store = LocalStore(disk, str(tmp_path / "s").strip("/") if isinstance(disk, SimDisk) else str(tmp_path))
    store.put("f/a", [OLD])
    with pytest.raises(KeyTaken):
        store.replace("f", [NEW])
    assert [stat.key for stat in store.list()] == ["f/a"]


def test_what_a_symbolic_link_leads_to_is_not_touched(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "a").write_bytes(OLD)
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "a").symlink_to(tmp_path / "outside" / "a")
    (inside / "way").symlink_to(tmp_path / "outside")
    store = LocalStore(PosixDisk(), str(inside))
    with pytest.raises(KeyTaken):
        store.replace("a", [NEW])
    with pytest.raises(StoreError):
        store.replace("way/a", [NEW])
    assert (tmp_path / "outside" / "a").read_bytes() == OLD
    assert store.folders() == store.folders("way/") == ()


def test_the_other_name_of_linked_bytes_keeps_them():
    store = LocalStore(SimDisk(), "root")
    store.put("f/a", [OLD])
    assert store.link("f/a", "g/a")
    store.replace("f/a", [NEW])
    assert (store.get("f/a"), store.get("g/a")) == (NEW, OLD)


def test_the_real_disk_replaces_files_and_nothing_else(tmp_path):
    disk, folder = PosixDisk(), tmp_path / "folder"
    folder.mkdir()
    for name in ("new", "old"):
        (tmp_path / name).write_bytes(name.encode())
    disk.rename_over(str(tmp_path / "new"), str(tmp_path / "old"))
    assert [(path.name, path.is_dir() or path.read_bytes()) for path in sorted(tmp_path.iterdir())] == [
        ("folder", True),
        ("old", b"new"),
    ]
    with pytest.raises(IsADirectoryError):
        disk.rename_over(str(tmp_path / "old"), str(folder))
    with pytest.raises(FileNotFoundError):
        disk.rename_over(str(tmp_path / "none"), str(tmp_path / "old"))
    assert (tmp_path / "old").read_bytes() == b"new"
