"""The local store keeps its promises through power cuts, killed processes and failing disks."""

import contextlib
import errno
import inspect
import itertools
import os
from collections.abc import Callable

import pytest

from mementum.errors import StoreError
from mementum.storage import local
from mementum.storage.disk import Disk
from mementum.storage.local import LocalStore
from mementum.storage.store import Store
from mementum.testing.choices import EveryChoice, power_cuts
from mementum.testing.faults import FailingDisk
from mementum.testing.simdisk import PowerCut, SimDisk

DATA = b"0123456789"
HALVES = (DATA[:5], DATA[5:])


def names_under(disk: Disk, folder: str = "root") -> list[str]:
    found: list[str] = []
    for name in disk.listdir(folder):
        found.append(f"{folder}/{name}")
        if name.endswith("/"):
            found += names_under(disk, f"{folder}/{name[:-1]}")
    return found


def keys(store: Store) -> list[str]:
    return [stat.key for stat in store.list()]


def put_one(disk: SimDisk, acknowledged: set[str]) -> None:
    LocalStore(disk, "root").put("f/a", HALVES)
    acknowledged.add("f/a")


def put_two(disk: SimDisk, acknowledged: set[str]) -> None:
    store = LocalStore(disk, "root")
    for key in ("f/a", "f/b"):
        store.put(key, HALVES)
        acknowledged.add(key)


def violation(workload: Callable[[SimDisk, set[str]], None], *, journaled: bool) -> tuple[int, str | None]:
    """How many survivors were tried, and the first that breaks a promise."""
    tried = 0
    for cut, acknowledged, survivor in power_cuts(workload, journaled=journaled):
        tried += 1
        store = LocalStore(survivor, "root")
        for key in keys(store):
            if store.get(key) != DATA:
                return tried, f"cut {cut}: {key} is broken"
        if acknowledged - set(keys(store)):
            return tried, f"cut {cut}: {acknowledged - set(keys(store))} lost"
        store.sweep()
        left = [name for name in names_under(survivor) if name.endswith(".tmp")]
        if left:
            return tried, f"cut {cut}: {left} left"
    return tried, None


@pytest.mark.parametrize("journaled", [False, True])
def test_a_put_survives_every_power_cut(journaled):
    tried, seen = violation(put_two, journaled=journaled)
    assert seen is None
    assert 20 < tried < 100


@pytest.mark.parametrize("journaled", [False, True])
@pytest.mark.parametrize(
    "line",
    [
        "file.fsync()",
        "self._disk.fsync_dir(parent)",
        "self._disk.fsync_dir(above)",
        "self._disk.rename_new(temp, path)",
    ],
)
def test_each_durable_effect_is_needed(monkeypatch, line, journaled):
    source = inspect.getsource(local)
    planted = dict(vars(local))
    exec(compile(source.replace(line, "pass"), local.__file__, "exec"), planted)
    monkeypatch.setitem(globals(), "LocalStore", planted["LocalStore"])
    _, seen = violation(put_two, journaled=journaled)
    assert seen is not None


def test_a_folder_is_durable_though_its_maker_was_killed_before_the_fsync():
    tried = 0
    for cut in itertools.count():
        disk, acknowledged = SimDisk(cut_at=cut), set[str]()
        with contextlib.suppress(PowerCut):  # here: kill -9
            put_one(disk, acknowledged)
        after = disk.after_process_death()
        LocalStore(after, "root").put("f/b", HALVES)
        choose = EveryChoice()
        while True:
            store = LocalStore(after.after_power_cut(choose), "root")
            assert {"f/b", *acknowledged} <= set(keys(store))
            assert all(store.get(key) == DATA for key in keys(store))
            tried += 1
            if not choose.advance():
                break
        if acknowledged:
            break
    assert cut == 10
    assert tried >= cut


@pytest.mark.parametrize("journaled", [False, True])
@pytest.mark.parametrize("alone", [False, True])
def test_a_deleted_object_is_whole_or_gone_and_never_comes_back(journaled, alone):
    def workload(disk: SimDisk, acknowledged: set[str]) -> None:
        store = LocalStore(disk, "root")
        store.put("f/a", HALVES)
        if not alone:
            store.put("f/b", HALVES)
        acknowledged.add("put")
        store.delete("f/a")
        acknowledged.add("deleted")

    for _, acknowledged, survivor in power_cuts(workload, journaled=journaled):
        store = LocalStore(survivor, "root")
        assert all(store.get(key) == DATA for key in keys(store))
        if "put" in acknowledged and not alone:
            assert "f/b" in keys(store)
        if "deleted" in acknowledged:
            assert "f/a" not in keys(store)
            if alone:
                assert names_under(survivor) == []
        store.delete("f/a")
        store.put("f/a", HALVES)
        assert store.get("f/a") == DATA


def test_deleting_again_finishes_what_a_killed_process_began():
    disk = SimDisk()
    store = LocalStore(disk, "root")
    store.put("f/a", HALVES)
    store.put("f/b", HALVES)
    disk.cut_at = disk.operations + 1
    with pytest.raises(PowerCut):
        store.delete("f/a")
    after = disk.after_process_death()
    LocalStore(after, "root").delete("f/a")
    choose = EveryChoice()
    assert keys(LocalStore(after.after_power_cut(choose), "root")) == ["f/b"]
    assert not choose.advance()  # nothing is pending


@pytest.mark.parametrize("journaled", [False, True])
def test_an_acknowledged_append_is_there_after_a_power_cut(journaled):
    lines = (b"first\n", b"second\n")

    def workload(disk: SimDisk, acknowledged: set[str]) -> None:
        store = LocalStore(disk, "root")
        for line in lines:
            store.append("journal/1", line)
            acknowledged.add(line.decode())

    for _, acknowledged, survivor in power_cuts(workload, journaled=journaled):
        store = LocalStore(survivor, "root")
        found = bytes(store.get("journal/1")) if "journal/1" in keys(store) else b""
        assert found.startswith(b"".join(lines[: len(acknowledged)]))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_failing_disk_leaves_the_object_whole_or_nothing(number):
    for fail_at in itertools.count():
        sim = SimDisk()
        LocalStore(sim, "root").put("f/old", HALVES)
        disk = FailingDisk(sim, fail_at, OSError(number, "planted"))
        store = LocalStore(disk, "root")
        try:
            store.put("g/new", HALVES)
        except StoreError as error:
            caught: StoreError | None = error
        else:
            caught = None
        if not disk.failed:
            break
        assert caught is not None
        assert (caught.key, caught.kept) == ("g/new", "older checkpoints")
        assert isinstance(caught.__cause__, OSError)
        assert caught.__cause__.errno == number
        assert keys(store) == ["f/old"]
        assert not [name for name in names_under(sim) if name.endswith(".tmp")]
        store.put("g/new", HALVES)
        assert store.get("g/new") == DATA
    assert (
        fail_at == 9
    )  # the fsync_dir of what was found, mkdir g, its fsync_dir, create, two writes, fsync, rename, fsync_dir


def test_what_a_disk_that_stays_broken_leaves_is_swept_later():
    leftovers = set()
    for fail_at in itertools.count():
        sim = SimDisk()
        disk = FailingDisk(sim, fail_at, then_heal=False)
        store = LocalStore(disk, "root")
        try:
            store.put("f/a", HALVES)
            break
        except StoreError:
            disk.heal()
        whole = keys(store)  # named, but its name could not be made durable, nor taken back
        assert [bytes(store.get(key)) for key in whole] == [DATA] * len(whole)
        swept = store.sweep()
        leftovers |= {len(swept)}
        assert all(key.startswith("f/a.") and key.endswith(".tmp") for key in swept)
        assert names_under(sim) == (["root/f/", "root/f/a"] if whole else [])
    assert leftovers == {0, 1}
    assert fail_at == 10


@pytest.mark.parametrize(
    ("number", "reason", "command"),
    [
        (errno.ENOSPC, "the disk is full", "`df -h /"),
        (errno.EDQUOT, "quota", "quota"),
        (errno.EACCES, "no permission", "`ls -ld /"),
        (errno.EPERM, "no permission", "`ls -ld /"),
        (errno.EROFS, "read-only", "`findmnt -T /"),
        (errno.EIO, "input/output error", "dmesg"),
        (errno.EMFILE, os.strerror(errno.EMFILE), "written"),
    ],
)
def test_errors_say_what_and_what_next(number, reason, command):
    store = LocalStore(FailingDisk(SimDisk(), 2, OSError(number, os.strerror(number))), "/root")
    with pytest.raises(StoreError, match="f/a: ") as caught:
        store.put("f/a", [DATA])
    assert reason in caught.value.message
    assert command in (caught.value.next_command or "")
