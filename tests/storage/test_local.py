"""The local store keeps the contract of all stores, does its durable effects in order, and stays in its folder."""

import errno
import inspect
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mementum.errors import KeyMissing, KeyTaken, StoreError, UsageError
from mementum.storage.disk import Disk, PosixDisk
from mementum.storage.local import LocalStore
from mementum.storage.store import Home, Store
from mementum.testing.faults import FailingDisk
from mementum.testing.simdisk import SimDisk
from mementum.testing.store_contract import HomeContract

DATA = b"0123456789"
HALVES = (DATA[:5], DATA[5:])


class TestLocalStoreOnPosixDisk(HomeContract):
    def make_store(self, tmp_path: Path) -> Home:
        return LocalStore(PosixDisk(), str(tmp_path / "made" / "when needed"))


class TestLocalStoreInAFolderThatExists(HomeContract):
    def make_store(self, tmp_path: Path) -> Home:
        return LocalStore(PosixDisk(), str(tmp_path))


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no file system in memory here")
class TestLocalStoreInMemory(HomeContract):
    """What a tier in ram is."""

    @pytest.fixture
    def tmp_path(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="mementum-test-", dir="/dev/shm") as folder:
            yield Path(folder)

    def make_store(self, tmp_path: Path) -> Home:
        return LocalStore(PosixDisk(), str(tmp_path))


class TestLocalStoreOnSimDisk(HomeContract):
    def make_store(self, tmp_path: Path) -> Home:
        return LocalStore(SimDisk(), "root/store")


class TestLocalStoreAtTheRoot(HomeContract):
    def make_store(self, tmp_path: Path) -> Home:
        return LocalStore(SimDisk(), "")


class DiskWithoutLinks(SimDisk):
    def link(self, old: str, new: str) -> None:
        raise OSError(errno.EPERM, "no links here", new)


class TestLocalStoreWithoutLinks(HomeContract):
    links = False

    def make_store(self, tmp_path: Path) -> Home:
        return LocalStore(DiskWithoutLinks(), "root")


class RecordingDisk(FailingDisk):
    """Notes the operations, with every temporary name as `t`."""

    def __init__(self, inner: Disk) -> None:
        super().__init__(inner, fail_at=1 << 30)
        self.seen: list[str] = []

    def _step(self) -> None:
        frame = inspect.currentframe()
        assert frame is not None
        assert frame.f_back is not None
        call = frame.f_back
        names = [call.f_locals[name] for name in ("path", "folder", "old", "new") if name in call.f_locals]
        self.seen.append(" ".join([call.f_code.co_name, *("t" if name.endswith(".tmp") else name for name in names)]))
        super()._step()

    def take(self) -> list[str]:
        seen, self.seen = self.seen, []
        return seen


def names_under(disk: Disk, folder: str = "root") -> list[str]:
    found: list[str] = []
    for name in disk.listdir(folder):
        found.append(f"{folder}/{name}")
        if name.endswith("/"):
            found += names_under(disk, f"{folder}/{name[:-1]}")
    return found


def keys(store: Store) -> list[str]:
    return [stat.key for stat in store.list()]


def test_the_operations_of_puts_and_deletes_are_these():
    disk = RecordingDisk(SimDisk())
    store = LocalStore(disk, "root/store")
    put = ["write", "write", "fsync", "rename_new t root/store/f/a", "fsync_dir root/store/f"]
    store.put("f/a", HALVES)
    folders = ["mkdir root", "fsync_dir ", "mkdir root/store", "fsync_dir root", "mkdir root/store/f"]
    assert disk.take() == [*folders, "fsync_dir root/store", "create t", *put]
    store.put("f/b", [DATA])
    assert disk.take() == [
        "create t", "write", "fsync", "rename_new t root/store/f/b", "fsync_dir root/store/f",
    ]  # fmt: skip
    store.delete("f/a")
    assert disk.take() == ["unlink root/store/f/a", "fsync_dir root/store/f"]
    store.delete("f/b")
    removed = ["unlink root/store/f/b", "fsync_dir root/store/f", "rmdir root/store/f", "fsync_dir root/store"]
    assert disk.take() == removed
    store.delete("f/b")
    assert disk.take() == []
    store.put("f/a", HALVES)
    assert disk.take() == ["mkdir root/store/f", "fsync_dir root/store", "create t", *put]
    store.replace("f/a", HALVES)
    assert disk.take() == ["create t", *(line.replace("rename_new", "rename_over") for line in put)]
    store.append("log", b"1")
    store.append("log", b"2")
    opened = ["append root/store/log", "write", "fsync"]
    assert disk.take() == [*opened, "fsync_dir root/store", *opened]


def test_a_new_instance_syncs_the_folders_that_it_finds():
    disk = RecordingDisk(SimDisk())
    LocalStore(disk, "root/store").put("f/a", [DATA])
    disk.take()
    LocalStore(disk, "root/store").put("f/b", [DATA])
    assert disk.take()[:3] == ["fsync_dir root", "fsync_dir root/store", "create t"]


def test_sweep_takes_leftovers_and_the_folders_they_leave_empty():
    disk = SimDisk()
    store = LocalStore(disk, "root")
    store.put("f/a", [DATA])
    for path in ("root/top.tmp", "root/f/a.0a1b2c3d.tmp", "root/g/h/b.tmp", "root/g/open.tmp"):
        for folder in ("root/g", "root/g/h"):
            if path.startswith(folder + "/") and not disk.has_folder(folder):
                disk.mkdir(folder)
        disk.create(path).close()
    writing = disk.create("root/g/writing.tmp")
    assert keys(store) == ["f/a"]
    assert store.sweep() == ("f/a.0a1b2c3d.tmp", "g/h/b.tmp", "g/open.tmp", "top.tmp")
    assert names_under(disk) == ["root/f/", "root/f/a", "root/g/", "root/g/writing.tmp"]
    for choose in (lambda options: options[0], lambda options: options[-1]):
        found = names_under(disk.after_power_cut(choose))
        assert set(found) <= {"root/f/", "root/f/a", "root/g/", "root/g/writing.tmp"}
    writing.close()
    assert store.sweep() == ("g/writing.tmp",)
    assert names_under(disk) == ["root/f/", "root/f/a"]
    assert store.sweep() == ()


def test_a_folder_that_another_process_removed_is_made_again():
    disk = SimDisk()
    store, other = LocalStore(disk, "root"), LocalStore(disk, "root")
    store.put("f/g/a", [DATA])
    other.delete("f/g/a")
    assert other.sweep() == ()
    assert names_under(disk) == []
    store.put("f/g/a", [DATA])
    other.delete("f/g/a")
    store.append("f/g/log", DATA)
    assert keys(LocalStore(disk.after_power_cut(lambda options: options[0]), "root")) == ["f/g/log"]


def test_a_put_that_loses_the_race_leaves_the_winner_alone():
    disk = SimDisk()
    store, other = LocalStore(disk, "root"), LocalStore(disk, "root")

    def chunks() -> Iterator[bytes]:
        other.put("a", [b"winner"])
        yield b"loser"

    with pytest.raises(KeyTaken):
        store.put("a", chunks())
    assert names_under(disk) == ["root/a"]
    assert store.get("a") == b"winner"


@pytest.mark.parametrize(
    "make", [lambda path: LocalStore(PosixDisk(), str(path)), lambda path: LocalStore(SimDisk(), "r")]
)
def test_a_home_grows_journals_and_holds_keys(tmp_path, make):
    home = make(tmp_path / "home")
    home.append("journal/1", b"one\n")
    home.append("journal/1", b"two\n")
    assert home.get("journal/1") == b"one\ntwo\n"
    assert keys(home) == ["journal/1"]
    home.delete("journal/1")
    home.append("journal/1", b"three\n")
    assert home.get("journal/1") == b"three\n"
    with pytest.raises(KeyMissing):
        home.hold("attempts/1")
    home.put("attempts/1", [b"{}"])
    hold = home.hold("attempts/1")
    assert hold is not None
    assert home.hold("attempts/1") is None
    hold.release()
    again = home.hold("attempts/1")
    assert again is not None
    again.release()
    for refused in (lambda: home.append("../a", b""), lambda: home.hold("a/")):
        with pytest.raises(UsageError):
            refused()


def test_symbolic_links_and_folders_are_no_objects(tmp_path):
    outside, inside = tmp_path / "outside", tmp_path / "store"
    for folder in (outside / "empty", inside / "folder"):
        folder.mkdir(parents=True)
    (outside / "secret").write_bytes(b"secret")
    (inside / "link").symlink_to(outside / "secret")
    (inside / "way").symlink_to(outside)
    (inside / "left.tmp").symlink_to(outside / "secret")
    (inside / "back\\slash").write_bytes(b"put by somebody else")
    store = LocalStore(PosixDisk(), str(inside))
    assert keys(store) == []
    assert store.sweep() == ()
    for key in ("link", "way/secret", "folder", "way"):
        with pytest.raises(KeyMissing):
            store.get(key)
        with pytest.raises(KeyMissing):
            store.hold(key)
        assert store.locate(key) is None
        store.delete(key)
    store.delete("way/empty/none")
    for key in ("link", "folder", "way"):
        with pytest.raises(KeyTaken):
            store.put(key, [DATA])
    for write in (lambda: store.put("way/new", [DATA]), lambda: store.append("way/new", DATA)):
        with pytest.raises(StoreError, match="not a folder"):
            write()
    with pytest.raises(StoreError):
        store.append("link", DATA)
    assert sorted(path.name for path in outside.iterdir()) == ["empty", "secret"]
    assert (outside / "secret").read_bytes() == b"secret"


def test_a_sweep_leaves_an_empty_folder_where_an_object_may_have_been(tmp_path):
    store = LocalStore(PosixDisk(), str(tmp_path))
    store.put("a/data", [DATA])
    for folder in ("a/meta", "b/c", "a/d/e"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "b" / "left.tmp").touch()
    store.sweep()
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == ["a", "a/d", "a/data", "a/meta"]


def test_what_puts_left_unfinished_is_told_and_no_list_shows_it(tmp_path):
    outside, inside = tmp_path / "outside", tmp_path / "store"
    outside.mkdir()
    (outside / "x.tmp").write_bytes(DATA)
    store = LocalStore(PosixDisk(), str(inside))
    store.put("a/data", [DATA])
    (inside / "a" / "data.0a1b2c3d.tmp").write_bytes(DATA[:4])
    (inside / "top.tmp").write_bytes(DATA)
    (inside / "way").symlink_to(outside)
    (inside / "link.tmp").symlink_to(outside / "x.tmp")
    assert keys(store) == ["a/data"]
    found = {stat.key: stat.size for stat in store.unfinished()}
    assert found == {"a/data.0a1b2c3d.tmp": 4, "top.tmp": len(DATA)}
    store.sweep()
    assert store.unfinished() == ()
    assert (outside / "x.tmp").read_bytes() == DATA
    assert LocalStore(PosixDisk(), str(tmp_path / "none")).unfinished() == ()


def test_a_key_is_taken_by_whatever_has_its_name(tmp_path):
    store = LocalStore(PosixDisk(), str(tmp_path))
    store.put("a/data", [DATA])
    (tmp_path / "a" / "folder").mkdir()
    (tmp_path / "a" / "link").symlink_to("nothing")
    for key, expected in {"a/data": True, "a/folder": True, "a/link": True, "a/none": False, "none/x": False}.items():
        assert store.taken(key) is expected
        if expected:
            with pytest.raises(KeyTaken):
                store.put(key, [DATA])
    assert not store.taken("a/data/below")
    with pytest.raises(UsageError):
        store.taken("../a")


def test_an_object_is_no_folder(tmp_path):
    for disk, folder in ((PosixDisk(), str(tmp_path)), (SimDisk(), "root")):
        store = LocalStore(disk, folder)
        store.put("a", [DATA])
        with pytest.raises(StoreError, match="a/b: a part of its path is not a folder"):
            store.put("a/b", [DATA])
        assert keys(store) == ["a"]


def test_a_folder_that_may_not_be_read_above_the_store_is_no_hindrance():
    class Guarded(SimDisk):
        def fsync_dir(self, folder: str) -> None:
            if folder == "shared":
                raise PermissionError(errno.EACCES, "not yours", folder)
            super().fsync_dir(folder)

    disk = Guarded()
    disk.mkdir("shared")
    disk.mkdir("shared/mine")
    store = LocalStore(disk, "shared/mine")
    store.put("a", [DATA])
    assert store.get("a") == DATA


def test_chunks_are_not_copied(tmp_path, monkeypatch):
    chunk, written = bytearray(1 << 20), []
    real_write = os.write

    def write(descriptor: int, data: memoryview) -> int:
        written.append(data.obj is chunk)
        return real_write(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    LocalStore(PosixDisk(), str(tmp_path)).put("a", [chunk, memoryview(chunk)[1000:]])
    assert written == [True, True]
