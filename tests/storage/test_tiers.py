"""Which store a url means, and what it outlives."""

from __future__ import annotations

import importlib
import os
import shutil
from pathlib import Path

import pytest

from mementum.errors import UsageError
from mementum.storage import tiers
from mementum.storage.tiers import absolute, default_reach, is_remote_url, is_same, kind_of, open_store


@pytest.mark.parametrize(
    ("url", "kind", "reach"),
    [
        ("/data/checkpoints", "folder", "reboot"),
        ("./checkpoints", "folder", "reboot"),
        ("~/checkpoints", "folder", "reboot"),
        ("file:///data", "folder", "reboot"),
        ("ram://", "ram", "process"),
        ("s3://bucket/prefix", "objects", "machine"),
        ("gs://bucket", "objects", "machine"),
        ("az://container/prefix", "objects", "machine"),
        ("redis://host:6379/0", "redis", "machine"),
        ("rediss://host", "redis", "machine"),
    ],
)
def test_a_url_has_a_kind_and_a_reach(url: str, kind: str, reach: str) -> None:
    assert kind_of(url) == kind
    assert default_reach(url) == reach
    assert is_remote_url(url) is (kind in ("objects", "redis"))


@pytest.mark.parametrize("url", ["ftp://host/a", "S4://bucket", "http://bucket"])
def test_other_schemes_are_refused(url: str) -> None:
    for call in (kind_of, default_reach, open_store, absolute):
        with pytest.raises(UsageError, match=r"is no place for checkpoints; there are s3://bucket/prefix"):
            call(url)


def test_folders_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert absolute("./a/../b") == str(tmp_path / "b")
    assert absolute("~/b") == "/home/somebody/b"
    assert absolute("file:///data/with%20space") == "/data/with space"
    assert absolute("/data#1?2") == "/data#1?2"
    assert absolute("s3://bucket/a") == "s3://bucket/a"


def test_folders_are_local_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    open_store("./here").put("a", [b"1"])
    open_store(f"file://{tmp_path}/there").put("a", [b"2"])
    assert (tmp_path / "here" / "a").read_bytes() == b"1"
    assert (tmp_path / "there" / "a").read_bytes() == b"2"
    assert bytes(open_store(str(tmp_path / "here")).get("a")) == b"1"
    with pytest.raises(UsageError, match="a folder has no options, but region was given"):
        open_store("/data", {"region": "x"})


def test_memory_is_a_folder_that_only_we_may_enter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "SHM", tmp_path)
    store = open_store("ram://one/two")
    store.put("a", [b"1"])
    own = tmp_path / f"mementum-tier-{os.geteuid()}"
    assert own.stat().st_mode & 0o777 == 0o700
    assert (own / "one" / "two" / "a").read_bytes() == b"1"
    open_store("ram://").put("a", [b"2"])
    assert (own / "checkpoints" / "a").read_bytes() == b"2"
    with pytest.raises(UsageError, match="leaves the memory of tiers"):
        open_store("ram://a/../../b")
    shutil.rmtree(own)
    own.symlink_to(tmp_path)
    with pytest.raises(UsageError, match="is not ours"):
        open_store("ram://one")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_memory_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "SHM", tmp_path)
    own = tmp_path / f"mementum-tier-{os.geteuid()}"
    own.mkdir()
    os.chown(own, 65534, 65534)
    with pytest.raises(UsageError, match="is not ours"):
        open_store("ram://one")


@pytest.mark.parametrize(("url", "kind"), [("s3://bucket/prefix", "ObjectStore"), ("redis://host:1/0", "RedisStore")])
def test_servers_are_not_asked_before_they_are_needed(url: str, kind: str) -> None:
    store = open_store(url, {"region": "eu-west-1"} if url.startswith("s3") else {})
    assert type(store).__name__ == kind


@pytest.mark.parametrize(
    ("url", "package", "extra"),
    [("s3://bucket/prefix", "obstore", "s3"), ("redis://:hunter2@host/0", "redis", "redis")],
)
def test_a_missing_package_is_named(url: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(UsageError, match=f"{package} is not installed") as caught:
        open_store(url)
    assert caught.value.next_command == f"pip install 'mementum[{extra}]'"
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "spelled"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("s3://bucket/%70/é%20x%25", "s3://bucket/p/é%20x%25"),
        ("s3://bucket/a?x", "s3://bucket/a?x"),
        ("ram://", "ram://checkpoints"),
        ("ram:///a/", "ram://a"),
        ("redis://Host", "redis://host:6379/0"),
        ("redis://u:w@host:1/2/mementum/", "redis://u:w@host:1/2"),
        ("redis://[::1]/2/mine", "redis://[::1]:6379/2/mine"),
        ("redis://host:x/0", "redis://host:x/0"),
    ],
)
def test_one_spelling_of_a_place(url: str, spelled: str) -> None:
    assert absolute(url) == spelled
    assert absolute(spelled) == spelled


def test_a_place_is_the_same_whoever_asks_for_it() -> None:
    assert is_same("redis://a:b@host", "redis://c:d@host:6379/0")
    assert not is_same("redis://host/0", "redis://host/1")
    assert not is_same("redis://host", "rediss://host")
    assert not is_same("s3://bucket/a", "s3://bucket/b")
    assert is_same("file:///data/a/", "/data/a")
