"""A dry run looks as if all had been done, and nothing is."""

from pathlib import Path

import pytest

from mementum.errors import KeyMissing, KeyTaken, StoreError
from mementum.storage import dry_run as dry_run_module
from mementum.storage.disk import PosixDisk
from mementum.storage.dry_run import DryRun, Planned
from mementum.storage.local import LocalStore
from mementum.storage.store import Stat, Store
from mementum.testing.simdisk import SimDisk
from mementum.testing.store_contract import StoreContract


class TestDryRun(StoreContract):
    def make_store(self, tmp_path: Path) -> Store:
        return DryRun(LocalStore(SimDisk(cut_at=0), "root"))  # which takes no change at all


def test_changes_are_seen_and_told_and_not_done():
    disk = SimDisk()
    inner = LocalStore(disk, "root")
    for key in ("f/a", "f/b", "g/c"):
        inner.put(key, [key.encode()])
    disk.cut_at = disk.operations
    store = DryRun(inner)
    store.delete("f/a")
    store.delete("f/a")
    store.delete("none")
    store.replace("f/b", [b"re", b"placed"])
    store.put("h/d", [b"new"])
    store.put("f/a", [b"again"])
    with pytest.raises(KeyTaken):
        store.put("g/c", [b"new"])
    store.delete("g/c")
    assert list(store.list()) == [Stat(key=key, size=size) for key, size in (("f/a", 5), ("f/b", 8), ("h/d", 3))]
    assert [stat.key for stat in store.list("f/b")] == ["f/b"]
    assert store.folders() == ("f", "g", "h")
    assert [bytes(store.get(key)) for key in ("f/a", "f/b", "h/d")] == [b"again", b"replaced", b"new"]
    with pytest.raises(KeyMissing):
        store.get("g/c")
    assert store.sweep() == ()
    assert store.planned == (
        Planned(what="delete", key="f/a", size=3),
        Planned(what="replace", key="f/b", size=8),
        Planned(what="put", key="h/d", size=3),
        Planned(what="put", key="f/a", size=5),
        Planned(what="delete", key="g/c", size=3),
    )
    assert [(stat.key, bytes(inner.get(stat.key))) for stat in inner.list()] == [
        (key, key.encode()) for key in ("f/a", "f/b", "g/c")
    ]


def test_only_what_is_untouched_lies_in_a_file(tmp_path):
    inner = LocalStore(PosixDisk(), str(tmp_path))
    for key in ("a", "b", "c"):
        inner.put(key, [b"1"])
    store = DryRun(inner)
    store.delete("a")
    store.replace("b", [b"2"])
    assert [store.locate(key) for key in ("a", "b", "c", "d")] == [None, None, tmp_path / "c", None]


def test_what_is_too_large_is_counted_and_not_kept(monkeypatch):
    monkeypatch.setattr(dry_run_module, "KEPT_BYTES_MAX", 10)
    store = DryRun(LocalStore(SimDisk(), "root"))
    store.put("small", [b"12345"])
    store.put("large", [b"123", b"456"])
    store.put("fits", [b"12345"])
    assert [stat.size for stat in store.list()] == [5, 6, 5]
    assert bytes(store.get("small")) == bytes(store.get("fits")) == b"12345"
    with pytest.raises(StoreError, match="too large for a dry run"):
        store.get("large")
    store.delete("small")
    store.replace("large", [b"45678"])
    assert bytes(store.get("large")) == b"45678"
