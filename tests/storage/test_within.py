"""The part of a store below a prefix keeps the contract of a store, and sees nothing of its neighbours."""

from pathlib import Path

import pytest

from mementum.errors import KeyMissing, KeyTaken, UsageError
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore
from mementum.storage.store import Store
from mementum.storage.within import Within
from mementum.testing.simdisk import SimDisk
from mementum.testing.store_contract import StoreContract

HOME = "20261130/byte-gpt_3fa9c1"


class TestWithin(StoreContract):
    def make_store(self, tmp_path: Path) -> Store:
        tier = LocalStore(SimDisk(), "tier")
        for key in ("20261130/byte-gpt_3fa9c", "20261130/byte-gpt_3fa9c10/a", "20261130/byte-gpt_3fa9c0/a", "z"):
            tier.put(key, [b"a neighbour's"])
        return Within(tier, HOME)


def test_what_is_put_lies_below_the_prefix(tmp_path):
    tier = LocalStore(PosixDisk(), str(tmp_path))
    home = Within(tier, HOME + "/")
    assert home.put("step_1/meta.json", [b"{}"]).key == "step_1/meta.json"
    assert home.locate("step_1/meta.json") == tmp_path / HOME / "step_1" / "meta.json"
    tier.put("20261130/other/step_1/meta.json", [b"{}"])
    assert [stat.key for stat in home.list()] == ["step_1/meta.json"]
    assert tier.folders("20261130/") == ("byte-gpt_3fa9c1", "other")
    assert home.folders() == ("step_1",)
    home.delete("step_1/meta.json")
    assert [stat.key for stat in tier.list()] == ["20261130/other/step_1/meta.json"]


def test_a_local_store_has_stores_below_it():
    tier = LocalStore(SimDisk(), "tier")
    home = tier.below(HOME)
    home.append("journal/1", b"line\n")
    assert home.put("a", [b"1"]).key == "a"
    assert home.link("a", "step_1/b")
    assert [stat.key for stat in tier.list()] == [f"{HOME}/{key}" for key in ("a", "journal/1", "step_1/b")]
    with pytest.raises(UsageError):
        tier.below("../other")


def test_errors_tell_the_key_that_the_caller_knows():
    tier = LocalStore(SimDisk(), "tier")
    home = Within(tier, HOME)
    home.put("a", [b"1"])
    for call, error in ((lambda: home.put("a", [b"2"]), KeyTaken), (lambda: home.get("b"), KeyMissing)):
        with pytest.raises(error) as caught:
            call()
        assert caught.value.key in ("a", "b")
        assert HOME not in caught.value.message
        assert caught.value.__cause__.key.startswith(HOME)


def test_a_sweep_tells_what_was_ours():
    disk = SimDisk()
    tier = LocalStore(disk, "tier")
    for folder in (HOME, "other"):
        tier.put(f"{folder}/a", [b"1"])
        disk.create(f"tier/{folder}/left.tmp").close()
    assert Within(tier, HOME).sweep() == ("left.tmp",)
    assert tier.sweep() == ()


@pytest.mark.parametrize("prefix", ["", "/", "../other", "a//b", "n" * 201])
def test_a_prefix_that_is_no_key_is_refused(prefix):
    with pytest.raises(UsageError):
        Within(LocalStore(SimDisk(), "tier"), prefix)


def test_a_key_that_is_too_long_with_the_prefix_is_refused():
    home = Within(LocalStore(SimDisk(), "tier"), "/".join(["p" * 199] * 4))
    with pytest.raises(UsageError, match="longer than 1000 bytes"):
        home.put("n" * 200 + "/a", [b"1"])
    assert home.put("n" * 200, [b"1"]).size == 1
