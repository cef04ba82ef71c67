"""A home that remembers its own errors keeps the contract of a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from mementum.errors import KeyMissing, KeyTaken
from mementum.storage.local import LocalStore
from mementum.storage.noted import Noted
from mementum.storage.store import Store
from mementum.testing.simdisk import SimDisk
from mementum.testing.store_contract import StoreContract


class TestNoted(StoreContract):
    def make_store(self, tmp_path: Path) -> Store:
        return Noted(LocalStore(SimDisk(), "root"))


def test_its_own_errors_are_remembered() -> None:
    home = Noted(LocalStore(SimDisk(), "root"))
    home.append("journal/0001.jsonl", b"{}\n")
    assert home.raised is None
    with pytest.raises(KeyMissing) as missing:
        home.get("none")
    assert home.raised is missing.value
    home.put("a", [b"1"])
    with pytest.raises(KeyTaken) as taken:
        home.put("a", [b"2"])
    assert home.raised is taken.value
    assert home.taken("a")
    assert home.link("a", "b")
    hold = home.hold("a")
    assert hold is not None
    hold.release()
    assert [stat.key for stat in home.list()] == ["a", "b", "journal/0001.jsonl"]
