"""A tier's copy of a root on an object store: what reads a root reads that as well, and leaves no file beside it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore
from mementum.storage.tiers import open_store
from services import start_redis

NAMES = {
    "endpoint": "AWS_ENDPOINT_URL",
    "allow_http": "AWS_ALLOW_HTTP",
    "region": "AWS_REGION",
    "access_key_id": "AWS_ACCESS_KEY_ID",
    "secret_access_key": "AWS_SECRET_ACCESS_KEY",
}


@pytest.fixture
def told(s3_options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What a client of S3 takes from the environment, and a cache folder of the test's own."""
    for name, value in s3_options.items():
        monkeypatch.setenv(NAMES[name], value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return s3_options


@pytest.fixture
def far(trained: Path, s3_url: str, told: dict[str, str]) -> str:
    """The checkpoints of `trained`, copied to a bucket as they lie."""
    source, target = LocalStore(PosixDisk(), str(trained)), open_store(s3_url, told)
    for stat in source.list():
        if not stat.key.startswith("catalog.db"):
            target.put(stat.key, [bytes(source.get(stat.key))])
    return s3_url


def keys(url: str, options: dict[str, str]) -> list[tuple[str, int]]:
    return [(stat.key, stat.size) for stat in open_store(url, options).list()]


def test_it_is_listed_as_the_root_is(ask: Any, far: str, trained: Path) -> None:
    answer = ask("ls", far)
    assert (answer.code, answer.err) == (0, "")
    assert answer.lines == ask("ls", trained).lines
    listed = json.loads(ask("ls", far, "--json").out)
    assert [one["step"] for one in listed] == [6, 4, 2]
    assert listed[0]["path"].startswith(f"{far}/2026")
    assert [one["step"] for one in json.loads(ask("ls", far, "--filter", "loss<0.4", "--json").out)] == [4]


@pytest.mark.parametrize(
    "words",
    [["show"], ["show", "@best"], ["why", "@latest"], ["trace"], ["tree"], ["du"], ["diff", "@4", "@6"]],
    ids=" ".join,
)
def test_what_reads_a_root_reads_it(ask: Any, far: str, trained: Path, words: list[str]) -> None:
    command, *rest = words
    answer, same = ask(command, far, *rest), ask(command, trained, *rest)
    assert (answer.code, answer.err) == (0, same.err)
    assert [line.replace(far, "ROOT") for line in answer.lines] == [
        line.replace(str(trained), "ROOT").split(" KiB on the disk")[0].rpartition(", ")[0]
        if "on the disk" in line
        else line.replace(str(trained), "ROOT")
        for line in same.lines
    ]


def test_what_a_tier_has_of_journals_is_told(ask: Any, trained: Path, tmp_path: Path) -> None:
    """A run brings its journals there in parts, and no vital signs."""
    root, nas = tmp_path / "root", tmp_path / "nas"
    shutil.copytree(trained, root)
    assert ask("place", root, "@4", "--to", nas).code == 0
    (part,) = nas.glob("*/*/journal/*")
    assert part.name == "0001-000000000000.jsonl"
    near, far = (json.loads(ask("tree", place, "--json").out)["stretches"] for place in (root, nas))
    assert [(one["until"], one["ended"]) for one in far] == [(one["until"], one["ended"]) for one in near]
    assert [one["metrics"]["acc"] for one in json.loads(ask("ls", nas, "--json").out)] == [0.75]
    lines, there = ask("why", root, "@4").lines, ask("why", nas, "@4").lines
    assert [line for line in there if line.startswith("  cause")] == [
        line for line in lines if line.startswith("  cause")
    ]


def test_a_redis_is_a_root(
    ask: Any, root: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert ask("place", root, "@4", "--to", redis_url).code == 0
    assert [one["step"] for one in json.loads(ask("ls", redis_url, "--json").out)] == [4]
    assert ask("verify", redis_url, "--deep").code == 0


@pytest.mark.parametrize("command", ["ls", "show", "du", "verify"])
def test_a_server_that_is_gone(ask: Any, command: str) -> None:
    answer = ask(command, "redis://user:secret@127.0.0.1:1/0", "--json")
    error = json.loads(answer.out)["error"]
    assert (answer.code, error["kind"]) == (1, "Unreachable")
    assert "127.0.0.1:1" in error["message"]
    assert "secret" not in answer.out + answer.err


def test_a_password_that_is_wrong(ask: Any) -> None:
    server = start_redis(password="right")
    try:
        answer = ask("ls", f"redis://:wrong@127.0.0.1:{server.port}/0", "--json")
    finally:
        server.stop()
    assert (answer.code, json.loads(answer.out)["error"]["kind"]) == (1, "AccessRefused")
    assert "wrong@" not in answer.out + answer.err


def test_nothing_is_written_there(ask: Any, far: str, told: dict[str, str], tmp_path: Path) -> None:
    before = keys(far, told)
    assert ask("verify", far, "--deep").code == 0
    assert ask("ls", far).code == 0
    assert keys(far, told) == before
    assert len(list((tmp_path / "cache" / "mementum").glob("*.db"))) == 1


def test_damage_there_is_found_and_not_recorded(ask: Any, far: str, told: dict[str, str]) -> None:
    store = open_store(far, told)
    key = next(stat.key for stat in store.list() if stat.key.endswith("4/model.safetensors"))
    data = bytearray(store.get(key))
    data[-1] ^= 1
    store.replace(key, [bytes(data)])
    before = keys(far, told)
    answer = ask("verify", far, "--deep", "--json")
    assert answer.code == 3
    found = {one["step"]: (bool(one["damage"]), one["recorded"]) for one in json.loads(answer.out)["checkpoints"]}
    assert found == {6: (False, False), 4: (True, False), 2: (False, False)}
    assert keys(far, told) == before


def test_it_is_exported(ask: Any, far: str, trained: Path, tmp_path: Path) -> None:
    assert ask("export", far, "@4", "--to", tmp_path / "far", "--as", "safetensors").code == 0
    assert ask("export", trained, "@4", "--to", tmp_path / "near", "--as", "safetensors").code == 0
    names = [path.name for path in sorted((tmp_path / "near").iterdir())]
    assert [path.name for path in sorted((tmp_path / "far").iterdir())] == names
    assert all((tmp_path / "far" / name).read_bytes() == (tmp_path / "near" / name).read_bytes() for name in names)


@pytest.mark.parametrize(
    "words",
    [
        ["rollback", "--to", "4"],
        ["drain"],
        ["doctor"],
        ["rebuild"],
        ["pin", "@4", "--why", "x"],
        ["unpin", "@4"],
        ["forget", "--keep-last", "1"],
        ["gc"],
    ],
    ids=" ".join,
)
def test_what_needs_a_local_disk_says_so(ask: Any, words: list[str]) -> None:
    command, *rest = words
    answer = ask(command, "redis://:secret@localhost:1/0", *rest)
    assert answer.code == 2
    assert "on a disk of this machine" in answer.err
    assert "next: give the folder that open_run was given" in answer.err
    assert "secret" not in answer.err


def test_an_empty_bucket_has_no_tasks(ask: Any, s3_url: str, told: dict[str, str]) -> None:
    answer = ask("ls", s3_url)
    assert answer.code == 4
    assert answer.err.startswith(f"{s3_url} holds no tasks of mementum\n")


def test_a_bucket_that_is_not_there(ask: Any, far: str) -> None:
    answer = ask("ls", "s3://nobody-has-this/prefix", "--json")
    assert answer.code == 1
    assert "nobody-has-this" in json.loads(answer.out)["error"]["message"]


def test_a_place_of_no_kind(ask: Any) -> None:
    answer = ask("ls", "gopher://host/ckpt")
    assert (answer.code, "gopher:// is no place for checkpoints" in answer.err) == (2, True)
