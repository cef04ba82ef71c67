"""The real disk: what it refuses, what it never replaces, and whose locks it respects."""

import errno
import fcntl
import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mementum.storage import disk as disk_module
from mementum.storage.descriptor import open_here
from mementum.storage.disk import Disk, NewFile, PosixDisk, folder_of

WRITER = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_EXCL)
fcntl.flock(fd, fcntl.LOCK_EX)
os.write(fd, b"half")
print("writing", flush=True)
sys.stdin.read()
"""

# It locks, and forks a worker that outlives it. Each says its line in one write, so that they do not mix.
TRAINER = """
import os, sys
from mementum.storage.disk import PosixDisk
disk = PosixDisk()
lock = disk.lock(sys.argv[1])
file = disk.create(sys.argv[2])
if os.fork() == 0:
    os.write(1, f"worker {disk.lock(sys.argv[1])}\\n".encode())
    sys.stdin.read()
    os._exit(0)
os.write(1, f"trainer {lock is not None}\\n".encode())
sys.stdin.read()
os.waitpid(-1, 0)
"""


@pytest.fixture
def disk() -> Disk:
    return PosixDisk()


def write(disk: Disk, path: Path, data: bytes) -> None:
    with disk.create(str(path)) as file:
        file.write(data)
        file.fsync()


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    source_root = Path(disk_module.__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(source_root), "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_folder_of():
    assert [folder_of(path) for path in ("/a/b", "/a", "/", "a/b/", "a", "")] == ["/a", "/", "/", "a", "", ""]


def test_create_write_read(disk, tmp_path):
    path = str(tmp_path / "a")
    with disk.create(path) as file:
        file.write(b"0123")
        file.write(memoryview(bytearray(b"4567")).cast("h"))
        file.write(memoryview(b"").cast("B"))
        file.write(b"89")
        file.fsync()
        file.fsync()
    assert disk.size(path) == 10
    assert disk.read(path) == b"0123456789"
    assert disk.read(path, 3, 4) == b"3456"
    assert disk.read(path, 8, 100) == b"89"
    assert disk.read(path, 100) == disk.read(path, 0, 0) == b""
    with pytest.raises(FileExistsError):
        disk.create(path)
    with disk.append(path) as file:
        file.write(b"ab")
    with disk.append(str(tmp_path / "b")) as file:
        file.write(b"cd")
    assert disk.read(path, 9) == b"9ab"
    assert disk.read(str(tmp_path / "b")) == b"cd"


def test_short_writes_and_short_reads_are_continued(disk, tmp_path, monkeypatch):
    real_write, real_pread = os.write, os.pread
    monkeypatch.setattr(os, "write", lambda fd, data: real_write(fd, data[:3]))
    monkeypatch.setattr(os, "pread", lambda fd, size, at: real_pread(fd, min(size, 2), at))
    write(disk, tmp_path / "a", b"0123456789")
    assert disk.read(str(tmp_path / "a")) == b"0123456789"
    assert disk.read(str(tmp_path / "a"), 1, 5) == b"12345"


def test_a_failed_fsync_is_final(disk, tmp_path, monkeypatch):
    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, "broken")

    with disk.create(str(tmp_path / "a")) as file:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", broken)
            with pytest.raises(OSError, match="broken"):
                file.fsync()
        with pytest.raises(OSError, match="an earlier fsync of this file failed"):
            file.fsync()


def test_modes_come_from_the_umask(disk, tmp_path):
    before = os.umask(0o027)
    try:
        write(disk, tmp_path / "a", b"")
        disk.append(str(tmp_path / "b")).close()
        disk.mkdir(str(tmp_path / "f"))
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in "abf"] == [0o640, 0o640, 0o750]


def test_what_is_not_a_regular_file_is_refused(disk, tmp_path):
    write(disk, tmp_path / "real", b"data")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "dangling").symlink_to("none")
    (tmp_path / "folder_link").symlink_to("folder")
    os.mkfifo(tmp_path / "pipe")
    for name, what in [("link", "link"), ("dangling", "link"), ("folder", "a folder"), ("pipe", "not a regular file")]:
        path = str(tmp_path / name)
        for call in (disk.read, disk.size, disk.lock):
            with pytest.raises(OSError, match=what):
                call(path)
        assert disk.locate(path) is None
        assert disk.unlink_unused(path) is False
    with pytest.raises(OSError, match="link"):
        disk.append(str(tmp_path / "link"))
    with pytest.raises(FileNotFoundError):
        disk.read(str(tmp_path / "none"))
    assert disk.locate(str(tmp_path / "real")) == tmp_path / "real"
    assert disk.has_folder(str(tmp_path / "folder"))
    assert not any(disk.has_folder(str(tmp_path / name)) for name in ("folder_link", "real", "none", "real/under"))
    assert disk.listdir(str(tmp_path)) == ["dangling", "folder/", "folder_link", "link", "pipe", "real"]
    assert disk.listdir(str(tmp_path / "none")) == []


def test_folders(disk, tmp_path):
    folder = str(tmp_path / "f")
    disk.mkdir(folder)
    with pytest.raises(FileExistsError):
        disk.mkdir(folder)
    disk.fsync_dir(folder)
    write(disk, tmp_path / "f" / "a", b"")
    with pytest.raises(OSError, match="not empty"):
        disk.rmdir(folder)
    disk.unlink(f"{folder}/a")
    disk.rmdir(folder)
    assert disk.listdir(str(tmp_path)) == []
    with pytest.raises(FileNotFoundError):
        disk.fsync_dir(folder)
    with pytest.raises(AssertionError, match="not an absolute path"):
        disk.has_folder("relative")


@pytest.mark.parametrize(("number", "raises"), [(errno.EINVAL, False), (errno.EIO, True)])
def test_file_systems_without_fsync_of_folders_are_forgiven(disk, tmp_path, monkeypatch, number, raises):
    def refused(descriptor: int) -> None:
        raise OSError(number, "refused")

    monkeypatch.setattr(os, "fsync", refused)
    if raises:
        with pytest.raises(OSError, match="refused"):
            disk.fsync_dir(str(tmp_path))
    else:
        disk.fsync_dir(str(tmp_path))


def refuse(monkeypatch, target: object, name: str, number: int) -> None:
    def refused(*arguments: object, **options: object) -> None:
        raise OSError(number, f"no {name} here")

    monkeypatch.setattr(target, name, refused)


@pytest.mark.parametrize("branch", ["renameat2", "no libc function", "link", "look and rename"])
def test_rename_never_replaces(disk, tmp_path, monkeypatch, branch):
    called: list[str] = []
    if branch == "no libc function":
        monkeypatch.setattr(disk_module, "_libc_renameat2", lambda: None)
    elif branch != "renameat2":
        refuse(monkeypatch, disk_module, "_renameat2", errno.EINVAL)
    if branch == "look and rename":
        refuse(monkeypatch, os, "link", errno.EPERM)
    for name in ("link", "rename"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, real=real, name=name: (called.append(name), real(*a))[1])
    old, new = str(tmp_path / "ö"), str(tmp_path / "new")
    write(disk, tmp_path / "ö", b"data")
    disk.rename_new(old, new)
    assert disk.listdir(str(tmp_path)) == ["new"]
    assert disk.read(new) == b"data"
    write(disk, tmp_path / "ö", b"second")
    with pytest.raises(FileExistsError):
        disk.rename_new(old, new)
    assert disk.read(new) == b"data"
    assert disk.read(old) == b"second"
    with pytest.raises(FileNotFoundError):
        disk.rename_new(str(tmp_path / "none"), str(tmp_path / "other"))
    expected = {
        "renameat2": set(),
        "no libc function": {"link"},
        "link": {"link"},
        "look and rename": {"link", "rename"},
    }
    assert set(called) == expected[branch]


def test_an_error_that_is_no_refusal_is_not_tried_another_way(disk, tmp_path, monkeypatch):
    write(disk, tmp_path / "old", b"data")
    with monkeypatch.context() as patch:
        refuse(patch, disk_module, "_renameat2", errno.EIO)
        with pytest.raises(OSError, match="no _renameat2 here"):
            disk.rename_new(str(tmp_path / "old"), str(tmp_path / "new"))
    refuse(monkeypatch, disk_module, "_renameat2", errno.ENOSYS)
    refuse(monkeypatch, os, "link", errno.ENOSPC)
    with pytest.raises(OSError, match="no link here"):
        disk.rename_new(str(tmp_path / "old"), str(tmp_path / "new"))
    assert disk.listdir(str(tmp_path)) == ["old"]


def test_a_rename_by_link_that_cannot_end_is_taken_back(disk, tmp_path, monkeypatch):
    write(disk, tmp_path / "old", b"data")
    refuse(monkeypatch, disk_module, "_renameat2", errno.ENOSYS)
    real_unlink = os.unlink

    def unlink(path: str) -> None:
        if path.endswith("old"):
            raise OSError(errno.EIO, "cannot unlink")
        real_unlink(path)

    monkeypatch.setattr(os, "unlink", unlink)
    with pytest.raises(OSError, match="cannot unlink"):
        disk.rename_new(str(tmp_path / "old"), str(tmp_path / "new"))
    assert disk.listdir(str(tmp_path)) == ["old"]


def test_a_lock_excludes_all_others_until_released(disk, tmp_path):
    write(disk, tmp_path / "a", b"")
    path = str(tmp_path / "a")
    lock = disk.lock(path)
    assert lock is not None
    assert disk.lock(path) is None
    assert PosixDisk().lock(path) is None
    lock.release()
    lock.release()
    again = disk.lock(path)
    assert again is not None
    again.release()
    with pytest.raises(FileNotFoundError):
        disk.lock(str(tmp_path / "none"))


def test_a_forgotten_lock_is_held_all_the_same(disk, tmp_path):
    write(disk, tmp_path / "a", b"")
    assert disk.lock(str(tmp_path / "a")) is not None
    gc.collect()
    assert disk.lock(str(tmp_path / "a")) is None
    for each in tuple(open_here):
        each.close()
    lock = disk.lock(str(tmp_path / "a"))
    assert lock is not None
    lock.release()


def test_a_file_that_is_being_written_is_not_unused(disk, tmp_path):
    path = str(tmp_path / "a")
    file = disk.create(path)
    assert disk.unlink_unused(path) is False
    file.close()
    assert disk.unlink_unused(path) is True
    assert disk.unlink_unused(path) is False
    assert disk.listdir(str(tmp_path)) == []


def test_a_file_that_another_process_writes_is_not_unused(disk, tmp_path):
    path = str(tmp_path / "a")
    with start(WRITER, path) as writer:
        assert writer.stdout.readline() == "writing\n"
        assert disk.unlink_unused(path) is False
        assert disk.lock(path) is None
        writer.kill()
        writer.wait()
        assert disk.read(path) == b"half"
        assert disk.unlink_unused(path) is True


def test_a_killed_process_frees_its_lock_though_its_forked_child_lives(disk, tmp_path):
    write(disk, tmp_path / "attempt", b"")
    attempt, unfinished = str(tmp_path / "attempt"), str(tmp_path / "unfinished")
    with start(TRAINER, attempt, unfinished) as trainer:
        said = {trainer.stdout.readline(), trainer.stdout.readline()}
        assert said == {"trainer True\n", "worker None\n"}  # closing in the worker has not unlocked for the trainer
        assert disk.lock(attempt) is None
        assert disk.unlink_unused(unfinished) is False
        trainer.kill()
        trainer.wait()
        lock = disk.lock(attempt)
        assert lock is not None
        assert disk.unlink_unused(unfinished) is True
        lock.release()
        trainer.stdin.close()  # the worker, which still reads from it, ends


def test_a_file_swept_before_it_could_be_marked_is_made_again(disk, tmp_path, monkeypatch):
    path, real_flock, swept = str(tmp_path / "a"), fcntl.flock, []

    def flock(descriptor: int, operation: int) -> None:
        if not swept:  # a sweeper comes between the writer's open and its lock
            swept.append(True)
            swept.append(disk.unlink_unused(path))
        real_flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with disk.create(path) as file:
        file.write(b"data")
    assert swept == [True, True]
    assert disk.read(path) == b"data"


def test_a_file_that_is_always_swept_is_an_error(disk, tmp_path, monkeypatch):
    monkeypatch.setattr(os.path, "lexists", lambda path: os.unlink(path))
    with pytest.raises(OSError, match="removed by a sweeper"):
        disk.create(str(tmp_path / "a"))


def test_without_locks_files_are_made_and_nothing_is_swept(disk, tmp_path, monkeypatch):
    refuse(monkeypatch, fcntl, "flock", errno.ENOSYS)
    path = str(tmp_path / "a")
    write(disk, tmp_path / "a", b"data")
    assert disk.unlink_unused(path) is False
    assert disk.read(path) == b"data"
    with pytest.raises(OSError, match="no flock here"):
        disk.lock(path)


def test_nothing_stays_open(disk, tmp_path):
    before = set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else set()
    write(disk, tmp_path / "a", b"data")
    disk.append(str(tmp_path / "a")).close()
    disk.read(str(tmp_path / "a"))
    lock = disk.lock(str(tmp_path / "a"))
    assert disk.lock(str(tmp_path / "a")) is None
    assert disk.unlink_unused(str(tmp_path / "a")) is False
    lock.release()
    disk.fsync_dir(str(tmp_path))
    with pytest.raises(OSError, match="folder"):
        disk.read(str(tmp_path))
    assert (set(os.listdir("/proc/self/fd")) if before else set()) == before


def test_a_sweeper_that_comes_late_leaves_the_next_file_of_the_name_alone(disk, tmp_path, monkeypatch):
    path, real_flock = str(tmp_path / "a"), fcntl.flock
    disk.create(path).close()

    def flock(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real_flock)
        os.unlink(path)  # another sweeper was faster, and a writer has made the name again
        written.append(disk.create(path))
        real_flock(descriptor, operation)

    written: list[NewFile] = []
    monkeypatch.setattr(fcntl, "flock", flock)
    assert disk.unlink_unused(path) is False
    assert disk.size(path) == 0
    written[0].close()
