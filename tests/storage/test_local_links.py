"""A second name is durable on return, and whatever line we die on, it is there whole or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from mementum.errors import KeyMissing, KeyTaken, StoreError
from mementum.storage.disk import NO_LINKS, PosixDisk
from mementum.storage.local import LocalStore
from mementum.testing.choices import power_cuts
from mementum.testing.faults import FailingDisk
from mementum.testing.simdisk import SimDisk

DATA = b"0123456789"


def keys(store: LocalStore) -> list[str]:
    return [stat.key for stat in store.list()]


def link_once(disk: SimDisk, acknowledged: set[str]) -> None:
    store = LocalStore(disk, "root")
    store.put("old/a", [DATA])
    acknowledged.add("old/a")
    assert store.link("old/a", "new/b")
    acknowledged.add("new/b")
    store.delete("old/a")
    acknowledged.remove("old/a")


@pytest.mark.parametrize("journaled", [False, True])
def test_at_every_power_cut_what_was_acknowledged_is_there_whole(journaled):
    seen: set[tuple[str, ...]] = set()
    for cut, acknowledged, disk in power_cuts(link_once, journaled=journaled):
        found = LocalStore(disk, "root")
        sure = "new/b" if "new/b" in acknowledged else "old/a"  # the old one may be gone before that is acknowledged
        assert sure in keys(found) or sure not in acknowledged, cut
        assert all(found.get(key) == DATA for key in keys(found)), cut
        seen.add(tuple(keys(found)))
    assert seen == {(), ("old/a",), ("new/b", "old/a"), ("new/b",)}


def test_a_link_that_fails_leaves_nothing():
    for fail_at in range(100):
        inner = SimDisk()
        LocalStore(inner, "root").put("old/a", [DATA])
        disk = FailingDisk(inner, fail_at, OSError(errno.EIO, "broken"))
        store = LocalStore(disk, "root")
        try:
            assert store.link("old/a", "new/b")
        except StoreError:
            assert keys(store) == ["old/a"]
            assert store.link("old/a", "new/b")
        assert keys(store) == ["new/b", "old/a"]
        if not disk.failed:
            assert fail_at >= 4  # the folder, its name, the link, its name
            return
    raise AssertionError("it never ended")


@pytest.mark.parametrize("number", sorted(NO_LINKS))
def test_where_there_are_no_links_the_caller_is_told(tmp_path, monkeypatch, number):
    def refused(*arguments: object, **options: object) -> None:
        raise OSError(number, "no links here")

    store = LocalStore(PosixDisk(), str(tmp_path))
    store.put("old/a", [DATA])
    monkeypatch.setattr(os, "link", refused)
    assert store.link("old/a", "new/b") is False
    assert keys(store) == ["old/a"]


def test_what_goes_or_comes_between_the_look_and_the_link():
    class Racing(SimDisk):
        def link(self, old: str, new: str) -> None:
            if new.endswith("taken"):
                self.create(new).close()
            else:
                self.unlink(old)
            super().link(old, new)

    store = LocalStore(Racing(), "root")
    store.put("a", [DATA])
    with pytest.raises(KeyTaken):
        store.link("a", "taken")
    with pytest.raises(KeyMissing) as caught:
        store.link("a", "b")
    assert caught.value.key == "a"


def test_both_names_are_of_one_file_and_no_symbolic_link_is_followed(tmp_path):
    store = LocalStore(PosixDisk(), str(tmp_path / "store"))
    store.put("f/a", [DATA])
    assert store.link("f/a", "f/b")
    folder = tmp_path / "store" / "f"
    assert os.path.samefile(folder / "a", folder / "b")
    (tmp_path / "secret").write_bytes(b"secret")
    (folder / "way").symlink_to(tmp_path / "secret")
    with pytest.raises(KeyMissing):
        store.link("f/way", "f/c")
    with pytest.raises(FileExistsError):
        PosixDisk().link(str(folder / "a"), str(folder / "way"))


def test_a_folder_that_another_process_removed_is_made_again():
    disk = SimDisk()
    store, other = LocalStore(disk, "root"), LocalStore(disk, "root")
    store.put("a", [DATA])
    store.put("f/x", [DATA])
    other.delete("f/x")
    assert store.link("a", "f/b")
    assert keys(store) == ["a", "f/b"]


def test_the_folder_of_a_link_may_be_seen(tmp_path: Path):
    store = LocalStore(PosixDisk(), str(tmp_path))
    store.put("a", [DATA])
    assert store.link("a", "deep/er/b")
    located = store.locate("deep/er/b")
    assert located is not None
    assert located.read_bytes() == DATA
