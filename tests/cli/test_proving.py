"""`mementum verify`: every kind of damage to every kind of file is found, named and recorded; nothing else is."""

from __future__ import annotations

import errno
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mementum.catalog import facts
from mementum.cli.proving import verify
from mementum.clock import ManualClock
from mementum.errors import KeyMissing, NotReadableHere, UsageError
from mementum.records import Damage
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore

FILES = ("model.safetensors", "optimizer.blocks", "index-00000.json", "context-00000.json")
DATA = FILES[:2]


def folder(root: Path, step: int) -> Path:
    (found,) = root.glob(f"*/*/step_{step:010d}")
    return found


def told(root: Path) -> list[Any]:
    """The recorded facts, in the order in which they were recorded."""
    return [fact for path in sorted(root.glob("*/*/facts/*.json")) for fact in facts.parse(path.read_bytes())]


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << place % 8
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def to_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def to_link(path: Path) -> None:
    target = path.rename(path.with_name("elsewhere"))
    path.symlink_to(target)


@pytest.mark.parametrize("deep", [False, True])
def test_whole(ask: Any, root: Path, deep: bool) -> None:
    answer = ask("verify", root, *["--deep"] * deep)
    assert (answer.code, answer.err) == (0, "")
    word = "whole" if deep else "complete"
    assert [line.split()[:2] for line in answer.lines[:3]] == [[word, f"byte-gpt@{step}"] for step in (6, 4, 2)]
    assert answer.lines[3].startswith("3 checkpoints verified, 0 damaged (")
    recorded = [(fact.kind, fact.checkpoint) for fact in told(root)]
    ids = [line.split()[2] for line in answer.lines[:3]]
    assert recorded == ([("verified", id) for id in ids] if deep else [])
    verified = [one["verified"] for one in json.loads(ask("ls", root, "--json").out)]
    assert all((time is not None) is deep for time in verified)


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit(ask: Any, root: Path, name: str, rng: random.Random) -> None:
    path = folder(root, 4) / name
    flip(path, rng.randrange(path.stat().st_size))
    answer = ask("verify", root, "--deep")
    assert answer.code == 3
    found = [line for line in answer.lines if line.startswith(f"{path.relative_to(root)}: ")]
    assert len(found) == 1
    assert "does not match its digest" in found[0]
    assert "3 checkpoints verified, 1 damaged" in answer.lines[-1]
    kinds = sorted(fact.kind for fact in told(root))
    assert kinds == ["damaged", "verified", "verified"]
    (damaged,) = (one for one in json.loads(ask("ls", root, "--json").out) if one["damaged"] is not None)
    assert damaged["step"] == 4
    assert damaged["damaged"].startswith(f"step_0000000004/{name}: ")


@pytest.mark.parametrize("name", FILES)
def test_every_bit_that_is_flipped_is_found(root: Path, name: str, rng: random.Random) -> None:
    """The seeded soak of the test before: a handful of places in each file, its first and last byte among them."""
    path = folder(root, 2) / name
    whole = path.read_bytes()
    for place in {0, len(whole) - 1, *(rng.randrange(len(whole)) for _ in range(6))}:
        flip(path, place)
        assert verify(str(root), "@2", deep=True, as_json=True, keep=False) == 3, f"bit {place % 8} of byte {place}"
        path.write_bytes(whole)
    assert verify(str(root), "@2", deep=True, as_json=True, keep=False) == 0


@pytest.mark.parametrize("name", DATA)
def test_shallow_does_not_read_data(ask: Any, root: Path, name: str) -> None:
    flip(folder(root, 4) / name, 100)
    answer = ask("verify", root)
    assert answer.code == 0
    assert "--deep reads every byte" in answer.lines[-1]
    assert told(root) == []


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", [truncate, lengthen, empty, Path.unlink, to_folder, to_link])
def test_shallow_finds_what_changed_its_size(ask: Any, root: Path, name: str, damage: Callable[[Path], None]) -> None:
    path = folder(root, 4) / name
    damage(path)
    answer = ask("verify", root, "byte-gpt@4")
    assert answer.code == 3
    assert any(line.startswith(f"{path.relative_to(root)}: ") for line in answer.lines)
    (fact,) = told(root)
    assert (fact.kind, fact.values["what"].partition(":")[0]) == ("damaged", f"step_0000000004/{name}")


@pytest.mark.parametrize("name", [*FILES, "meta.json"])
def test_files_swapped_between_checkpoints(ask: Any, root: Path, name: str) -> None:
    one, other = folder(root, 2) / name, folder(root, 4) / name
    first, second = one.read_bytes(), other.read_bytes()
    assert first != second
    one.write_bytes(second)
    other.write_bytes(first)
    answer = ask("verify", root, "--deep")
    assert answer.code == 3
    assert "3 checkpoints verified, 2 damaged" in answer.lines[-1]
    (root / "catalog.db").unlink()
    assert "3 checkpoints verified, 2 damaged" in ask("verify", root, "--deep").lines[-1]


@pytest.mark.parametrize("garbage", [b"", b"garbage", b"{}", b"[" * 100_000, b'{"format": 2}', b"\xff\0"])
@pytest.mark.parametrize("known", [True, False], ids=["in the catalog", "new"])
def test_a_garbage_manifest(ask: Any, root: Path, garbage: bytes, known: bool) -> None:
    meta = folder(root, 4) / "meta.json"
    meta.write_bytes(garbage)
    if not known:
        (root / "catalog.db").unlink()
    answer = ask("verify", root)
    assert answer.code == 3
    assert any(line.startswith(f"{meta.relative_to(root)}: ") for line in answer.lines)
    assert [fact.kind for fact in told(root)] == ["damaged"] * known
    found = json.loads(ask("verify", root, "--json").out)
    assert len(found["unreadable"]) == (0 if known else 1)
    assert ask("verify", root, "@6").code == 0


def test_a_flipped_manifest_byte(ask: Any, root: Path, rng: random.Random) -> None:
    meta = folder(root, 4) / "meta.json"
    flip(meta, rng.randrange(meta.stat().st_size))
    assert ask("verify", root, "byte-gpt").code == 3


def test_two_checkpoints_with_one_id(ask: Any, root: Path) -> None:
    """Facts name an id, so that what is wrong with the one folder would be said of the other too."""
    (folder(root, 6) / "meta.json").write_bytes((folder(root, 2) / "meta.json").read_bytes())
    answer = ask("verify", root)
    assert answer.code == 3
    assert "3 checkpoints verified, 1 damaged" in answer.lines[-1]
    assert "another folder holds a checkpoint with the same id" in answer.err
    assert told(root) == []


def test_damage_that_is_known_is_not_recorded_again(ask: Any, root: Path) -> None:
    path = folder(root, 4) / "model.safetensors"
    whole = path.read_bytes()
    truncate(path)
    for _ in range(2):
        answer = json.loads(ask("verify", root, "@4", "--json").out)
        assert answer["checkpoints"][0]["recorded"] is True
        assert [fact.kind for fact in told(root)] == ["damaged"]
    path.write_bytes(whole)  # the disk came back
    assert ask("verify", root, "@4").code == 0
    assert json.loads(ask("ls", root, "--json").out)[1]["damaged"] is not None  # sizes alone prove nothing
    assert ask("verify", root, "@4", "--deep").code == 0
    assert [fact.kind for fact in told(root)] == ["damaged", "verified"]
    listed = json.loads(ask("ls", root, "--json").out)[1]
    assert listed["damaged"] is None
    assert listed["verified"] is not None


def test_no_record(ask: Any, root: Path) -> None:
    truncate(folder(root, 4) / "model.safetensors")
    answer = ask("verify", root, "--deep", "--no-record", "--json")
    assert answer.code == 3
    found = json.loads(answer.out)
    assert [one["recorded"] for one in found["checkpoints"]] == [False] * 3
    assert not list(root.glob("*/*/facts"))


def test_json(ask: Any, root: Path) -> None:
    truncate(folder(root, 4) / "optimizer.blocks")
    found = json.loads(ask("verify", root, "--deep", "--json").out)
    assert (found["deep"], found["unreadable"]) == (True, [])
    whole, damaged, _ = found["checkpoints"]
    assert whole["damage"] == []
    assert whole["recorded"] is True
    place = str(folder(root, 4).relative_to(root))
    assert (damaged["task"], damaged["step"], damaged["folder"]) == ("byte-gpt", 4, place)
    ((finding),) = damaged["damage"]
    assert finding["key"] == f"{place}/optimizer.blocks"
    assert finding["what"].startswith("it should have ")


def test_facts_are_named_by_time(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clock = ManualClock()
    for _ in range(2):
        assert verify(str(root), "@6", deep=True, as_json=False, keep=True, clock=clock) == 0
        clock.advance(1.0)
    assert [fact.time for fact in told(root)] == ["2023-11-14T22:13:20.000000Z", "2023-11-14T22:13:21.000000Z"]
    assert capsys.readouterr().out.count("whole") == 2


def test_a_root_that_cannot_be_written(ask: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(disk: PosixDisk, path: str) -> None:
        raise OSError(errno.EROFS, "Read-only file system", path)

    truncate(folder(root, 4) / "model.safetensors")
    monkeypatch.setattr(PosixDisk, "create", refuse)
    answer = ask("verify", root, "--deep")
    assert answer.code == 3
    assert "3 checkpoints verified, 1 damaged" in answer.lines[-1]
    assert answer.err.count("what was found is not recorded: ") == 1
    assert "the file system is read-only" in answer.err
    assert told(root) == []


def test_two_tasks(ask: Any, root: Path, make: Any) -> None:
    make(root, "second", losses=(0.1,))
    assert "4 checkpoints verified" in ask("verify", root).lines[-1]
    assert "1 checkpoint verified" in ask("verify", root, "second").lines[-1]
    assert ask("verify", root, "@latest").code == 2
    assert ask("verify", root, "third").code == 4


def test_a_checkpoint_removed_meanwhile_is_no_damage(ask: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def remove_first(store: Any, place: str, manifest: Any, *, deep: bool) -> tuple[Damage, ...]:
        for path in folder(root, manifest.step).iterdir():
            path.unlink()
        return (Damage(key=place, what="it is missing"),)

    monkeypatch.setattr("mementum.recover.verify.verify", remove_first)
    answer = ask("verify", root, "@4")
    assert answer.code == 4
    assert "was removed while it was verified" in answer.err
    assert told(root) == []


def test_what_cannot_be_checked_is_no_damage(ask: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_codec(*_: object, **__: object) -> None:
        raise UsageError("there is no 'brotli' in mementum.codecs")

    monkeypatch.setattr("mementum.recover.verify.verify", no_codec)
    answer = ask("verify", root, "--deep")
    assert answer.code == 1
    assert "3 checkpoints verified, 0 damaged, 3 could not be checked" in answer.lines[-1]
    assert told(root) == []


@pytest.mark.parametrize("name", ["model.safetensors", "index-00000.json", "meta.json"])
def test_a_file_that_may_not_be_read_is_no_damage(
    ask: Any, root: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    read = PosixDisk.read

    def refuse(disk: PosixDisk, path: str, start: int = 0, size: int | None = None) -> bytes:
        if path.endswith(f"step_0000000004/{name}"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return read(disk, path, start, size)

    monkeypatch.setattr(PosixDisk, "read", refuse)
    answer = ask("verify", root, "@4", "--deep")
    assert answer.code == 1
    assert answer.lines[0].startswith("unchecked  byte-gpt@4 ")
    assert told(root) == []


def test_a_class_that_is_not_imported_here_is_no_damage(ask: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: Any, **__: Any) -> Any:
        raise NotReadableHere("$.values: train:Stage is not among the imported modules")

    monkeypatch.setattr("mementum.recover.verify.verify", gone)
    answer = ask("verify", root, "@4")
    assert answer.code == 1
    assert "train:Stage is not among the imported modules" in answer.lines[0]
    monkeypatch.undo()
    flip(folder(root, 4) / "context-00000.json", 50)
    assert ask("verify", root, "@4").code == 3


def test_the_counting_store_is_a_store(tmp_path: Path) -> None:
    from mementum.cli.proving import Counted

    read: list[int] = []
    store = Counted(LocalStore(PosixDisk(), str(tmp_path)), read.append)
    assert store.put("a/b", [b"123"]).size == 3
    assert bytes(store.get("a/b", 1)) == b"23"
    assert [stat.key for stat in store.list()] == ["a/b"]
    assert store.locate("a/b") == tmp_path / "a" / "b"
    store.delete("a/b")
    assert store.sweep() == ()
    with pytest.raises(KeyMissing):
        store.get("a/b")
    assert read == [2]
