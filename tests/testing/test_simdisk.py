"""The simulated disk keeps its fault model, and finds what it is there to find."""

import contextlib
import errno
import itertools
import random

import pytest

from mementum.storage.disk import Disk, folder_of
from mementum.testing.choices import EveryChoice, power_cuts
from mementum.testing.faults import FailingDisk
from mementum.testing.simdisk import PowerCut, SimDisk

OLD = b"old!"


def write(disk: Disk, path: str, data: bytes, *, sync: bool = True) -> None:
    with disk.create(path) as file:
        file.write(data)
        if sync:
            file.fsync()


def survivors(disk: SimDisk, *, journaled: bool = False) -> list[SimDisk]:
    choose, found = EveryChoice(), []
    while True:
        found.append(disk.after_power_cut(choose, journaled=journaled))
        if not choose.advance():
            return found


def contents(disk: SimDisk, folder: str = "") -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name in disk.listdir(folder):
        path = f"{folder}/{name}".strip("/")
        if name.endswith("/"):
            found |= {f"{path}/": b""} | contents(disk, path)
        else:
            found[path] = disk.read(path)
    return found


def all_contents(disk: SimDisk, *, journaled: bool = False) -> list[dict[str, bytes]]:
    unique: list[dict[str, bytes]] = []
    for survivor in survivors(disk, journaled=journaled):
        found = contents(survivor)
        if found not in unique:
            unique.append(found)
    return unique


def test_a_durable_name_without_fsync_is_lost_torn_or_whole():
    disk = SimDisk()
    write(disk, "a", b"12345", sync=False)
    disk.fsync_dir("")
    assert all_contents(disk) == [{"a": b""}, {"a": b"12\0\0\0"}, {"a": b"12345"}]


def test_what_an_earlier_fsync_covered_stays():
    disk = SimDisk()
    write(disk, "a", OLD)
    disk.fsync_dir("")
    with disk.append("a") as file:
        file.write(b"ne")
        file.write(b"ws")
    assert disk.read("a") == b"old!news"
    assert disk.read("a", 3, 2) == b"!n"
    assert disk.size("a") == 8
    assert all_contents(disk) == [{"a": OLD}, {"a": b"old!ne\0\0"}, {"a": b"old!news"}]


def test_a_synced_file_without_a_synced_name_may_be_gone():
    disk = SimDisk()
    write(disk, "a", OLD)
    assert all_contents(disk) == [{}, {"a": OLD}]
    disk.fsync_dir("")
    assert all_contents(disk) == [{"a": OLD}]


def test_two_names_of_one_file_share_its_bytes_and_their_fate():
    disk = SimDisk()
    disk.mkdir("f")
    with disk.create("a") as file:
        file.write(OLD)
        disk.link("a", "f/b")
        disk.fsync_dir("")
        disk.fsync_dir("f")
        assert all_contents(disk) == [{"a": each, "f/": b"", "f/b": each} for each in (b"", b"ol\0\0", OLD)]
        file.fsync()
    disk.unlink("a")
    assert contents(disk) == {"f/": b"", "f/b": OLD}
    assert contents(disk.after_process_death()) == {"f/": b"", "f/b": OLD}
    assert all_contents(disk) == [{"a": OLD, "f/": b"", "f/b": OLD}, {"f/": b"", "f/b": OLD}]


def test_a_second_name_is_durable_with_its_own_folder_only():
    disk = SimDisk()
    disk.mkdir("f")
    write(disk, "a", OLD)
    disk.fsync_dir("")
    disk.link("a", "f/b")
    disk.fsync_dir("")
    assert all_contents(disk) == [{"a": OLD, "f/": b""}, {"a": OLD, "f/": b"", "f/b": OLD}]
    disk.fsync_dir("f")
    assert all_contents(disk) == [{"a": OLD, "f/": b"", "f/b": OLD}]


def test_a_rename_is_one_change():
    disk = SimDisk()
    write(disk, "t", OLD)
    disk.fsync_dir("")
    disk.rename_new("t", "a")
    assert all_contents(disk) == [{"t": OLD}, {"a": OLD}]


def test_a_rename_over_a_file_leaves_one_of_both():
    disk = SimDisk()
    write(disk, "a", OLD)
    write(disk, "t", b"new!")
    disk.fsync_dir("")
    disk.rename_over("t", "a")
    assert contents(disk) == {"a": b"new!"}
    assert all_contents(disk) == [{"a": OLD, "t": b"new!"}, {"a": b"new!"}]
    assert all_contents(disk, journaled=True) == [{"a": OLD, "t": b"new!"}, {"a": b"new!"}]
    disk.rename_over("a", "b")
    disk.fsync_dir("")
    assert all_contents(disk) == [{"b": b"new!"}]


def test_names_persist_in_any_subset_or_in_order():
    disk = SimDisk()
    for name in "ab":
        write(disk, name, b"")
    assert [sorted(found) for found in all_contents(disk)] == [[], ["b"], ["a"], ["a", "b"]]
    assert [sorted(found) for found in all_contents(disk, journaled=True)] == [[], ["a"], ["a", "b"]]


def test_a_folder_is_a_name_of_its_parent():
    disk = SimDisk()
    disk.mkdir("f")
    write(disk, "f/a", OLD)
    disk.fsync_dir("f")
    assert all_contents(disk) == [{}, {"f/": b"", "f/a": OLD}]
    disk.fsync_dir("")
    assert all_contents(disk) == [{"f/": b"", "f/a": OLD}]


def test_an_unlink_that_is_not_durable_may_come_back():
    disk = SimDisk()
    write(disk, "a", OLD)
    disk.fsync_dir("")
    disk.unlink("a")
    assert contents(disk) == {}
    assert all_contents(disk) == [{"a": OLD}, {}]


def test_a_new_folder_does_not_inherit_from_a_removed_one_of_its_name():
    disk = SimDisk()
    disk.mkdir("f")
    disk.fsync_dir("")
    write(disk, "f/a", OLD)
    disk.fsync_dir("f")
    disk.unlink("f/a")
    disk.rmdir("f")
    disk.mkdir("f")
    disk.fsync_dir("")
    assert all_contents(disk) == [{"f/": b""}]


def test_process_death_keeps_what_was_written_and_what_is_pending():
    disk = SimDisk()
    write(disk, "held", b"")
    assert disk.lock("held") is not None
    file = disk.create("a")
    file.write(b"12")
    after = disk.after_process_death()
    assert contents(after) == {"a": b"12", "held": b""}
    assert {"a": b"1\0"} in all_contents(after)
    assert {} in all_contents(after)
    assert after.lock("held") is not None
    assert after.unlink_unused("a")
    file.write(b"a dead process writes nothing")
    assert contents(after) == {"held": b""}
    assert disk.size("a") == 31


def test_locks_and_open_files_exclude():
    disk = SimDisk()
    file = disk.create("a")
    assert disk.lock("a") is None
    assert not disk.unlink_unused("a")
    file.close()
    lock = disk.lock("a")
    assert lock is not None
    assert disk.lock("a") is None
    lock.release()
    lock.release()
    assert disk.unlink_unused("a")
    assert not disk.unlink_unused("a")
    with pytest.raises(FileNotFoundError):
        disk.lock("a")


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda disk: disk.create("f/a"), FileExistsError),
        (lambda disk: disk.create("none/a"), FileNotFoundError),
        (lambda disk: disk.create("f/a/b"), NotADirectoryError),
        (lambda disk: disk.read("f"), IsADirectoryError),
        (lambda disk: disk.read(""), IsADirectoryError),
        (lambda disk: disk.size("none"), FileNotFoundError),
        (lambda disk: disk.unlink("f"), IsADirectoryError),
        (lambda disk: disk.unlink("f/none"), FileNotFoundError),
        (lambda disk: disk.rename_new("f/b", "f/a"), FileExistsError),
        (lambda disk: disk.rename_new("f/none", "f/c"), FileNotFoundError),
        (lambda disk: disk.rename_over("f/none", "f/a"), FileNotFoundError),
        (lambda disk: disk.rename_over("f/a", "f"), IsADirectoryError),
        (lambda disk: disk.link("f/b", "f/a"), FileExistsError),
        (lambda disk: disk.link("f/none", "f/c"), FileNotFoundError),
        (lambda disk: disk.mkdir("f"), FileExistsError),
        (lambda disk: disk.rmdir("none"), FileNotFoundError),
        (lambda disk: disk.fsync_dir("none"), FileNotFoundError),
    ],
)
def test_it_refuses_as_an_operating_system_does(call, error):
    disk = SimDisk()
    disk.mkdir("f")
    write(disk, "/f/a", OLD)
    write(disk, "f/b", OLD)
    with pytest.raises(error):
        call(disk)
    with pytest.raises(OSError, match="not empty") as caught:
        disk.rmdir("f")
    assert caught.value.errno == errno.ENOTEMPTY
    assert contents(disk) == {"f/": b"", "f/a": OLD, "f/b": OLD}


def test_the_leading_slash_means_nothing():
    disk = SimDisk()
    disk.mkdir("/f")
    write(disk, "f/a", OLD)
    assert disk.read("/f/a") == OLD
    assert disk.listdir("/") == disk.listdir("") == ["f/"]
    assert disk.listdir("none") == []
    assert disk.has_folder("")
    assert not disk.has_folder("f/a")


def test_a_dead_disk_does_nothing_any_more():
    disk = SimDisk(cut_at=1)
    file = disk.create("a")
    with pytest.raises(PowerCut):
        file.write(b"1")
    for call in (lambda: file.fsync(), lambda: disk.unlink("a"), lambda: disk.read("a"), lambda: disk.listdir("")):
        with pytest.raises(PowerCut):
            call()
    assert disk.operations == 1
    assert all_contents(disk) == [{}, {"a": b""}]


def test_every_choice_is_made_once():
    choose, seen = EveryChoice(), []
    while True:
        first = choose("ab")
        seen.append(first + (choose("xyz") if first == "a" else ""))
        if not choose.advance():
            break
    assert seen == ["ax", "ay", "az", "b"]


def test_a_seeded_choice_picks_among_the_same_survivors():
    disk = SimDisk()
    for name in "abc":
        write(disk, name, b"123", sync=False)
    rng = random.Random(7)
    every = all_contents(disk)
    assert len(every) == 64  # each file: no name, or lost, torn, whole
    assert all(contents(disk.after_power_cut(rng.choice)) in every for _ in range(100))


# Ways to make an object appear, as libraries do it; only the first survives every power cut.


def ensure_folder(disk: Disk, folder: str, *, sync: bool) -> None:
    if not disk.has_folder(folder):
        disk.mkdir(folder)
        if sync:
            disk.fsync_dir(folder_of(folder))


def durable(disk: Disk, path: str) -> None:
    ensure_folder(disk, folder_of(path), sync=True)
    write(disk, path + ".tmp", OLD)
    disk.rename_new(path + ".tmp", path)
    disk.fsync_dir(folder_of(path))


def without_fsync(disk: Disk, path: str) -> None:
    ensure_folder(disk, folder_of(path), sync=True)
    write(disk, path + ".tmp", OLD, sync=False)
    disk.rename_new(path + ".tmp", path)
    disk.fsync_dir(folder_of(path))


def without_fsync_dir(disk: Disk, path: str) -> None:
    ensure_folder(disk, folder_of(path), sync=True)
    write(disk, path + ".tmp", OLD)
    disk.rename_new(path + ".tmp", path)


def in_an_orphaned_folder(disk: Disk, path: str) -> None:
    ensure_folder(disk, folder_of(path), sync=False)
    write(disk, path + ".tmp", OLD)
    disk.rename_new(path + ".tmp", path)
    disk.fsync_dir(folder_of(path))


def first_violation(put, *, journaled: bool) -> tuple[int, str | None]:
    def workload(disk: SimDisk, acknowledged: set[str]) -> None:
        for path in ("f/a", "f/b"):
            put(disk, path)
            acknowledged.add(path)

    tried = 0
    for cut, acknowledged, survivor in power_cuts(workload, journaled=journaled):
        tried += 1
        found = {path: data for path, data in contents(survivor).items() if path in ("f/a", "f/b")}
        if any(data != OLD for data in found.values()):
            return tried, f"cut {cut}: broken"
        if acknowledged - set(found):
            return tried, f"cut {cut}: lost"
    return tried, None


@pytest.mark.parametrize("journaled", [False, True])
def test_the_durable_way_survives_every_power_cut(journaled):
    tried, seen = first_violation(durable, journaled=journaled)
    assert seen is None
    assert 20 < tried < 100


@pytest.mark.parametrize("journaled", [False, True])
@pytest.mark.parametrize(
    ("put", "what"), [(without_fsync, "broken"), (without_fsync_dir, "lost"), (in_an_orphaned_folder, "lost")]
)
def test_every_shortcut_is_found(put, what, journaled):
    _, seen = first_violation(put, journaled=journaled)
    assert seen is not None
    assert seen.endswith(what)


def test_too_much_pending_is_an_error():
    def workload(disk: SimDisk, acknowledged: set[str]) -> None:
        for n in range(10):
            write(disk, str(n), b"")

    with pytest.raises(AssertionError, match="over 100 survivors"):
        for _ in power_cuts(workload, at_most=100):
            pass


def test_a_failing_disk_fails_once_at_each_operation():
    for fail_at in itertools.count():
        disk = SimDisk()
        failing = FailingDisk(disk, fail_at)
        with contextlib.suppress(OSError):
            durable(failing, "f/a")
        if not failing.failed:
            break
        assert disk.operations == fail_at
    assert fail_at == 7  # mkdir and its fsync_dir, create, write, fsync, rename, fsync_dir


def test_a_failing_disk_may_stay_broken_until_it_is_healed():
    failing = FailingDisk(SimDisk(), 1, PermissionError(errno.EACCES, "no"), then_heal=False)
    failing.mkdir("f")
    for _ in range(3):
        with pytest.raises(PermissionError):
            failing.mkdir("g")
    assert failing.listdir("") == ["f/"]
    failing.heal()
    failing.mkdir("g")
    assert failing.listdir("") == ["f/", "g/"]
