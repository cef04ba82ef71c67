"""Blocks are read by several threads: whole, in any order, and what is told does not depend on who was faster."""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mementum.errors import NotReadableHere, StoreError
from mementum.format import blocks
from mementum.format.blocks import BLOCK, Stretch
from mementum.records import Buffer, Damage, DataFile
from mementum.recover.read import THREADS, read_files, side_by_side
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore
from mementum.storage.reading import LocalFile
from mementum.testing.simdisk import SimDisk

SIZES = {"a.blocks": 2 * BLOCK + 5, "b.blocks": 0, "c.blocks": 3 * BLOCK, "d.blocks": 7}
CODECS = {"a.blocks": "raw", "b.blocks": "raw", "c.blocks": "zstd:1", "d.blocks": "raw"}


def content(name: str) -> bytes:
    half = SIZES[name] // 2  # one half of it can be compressed
    return random.Random(SIZES[name]).randbytes(half) + bytes(SIZES[name] - half)


def put(store: LocalStore) -> list[DataFile]:
    files: list[DataFile] = []
    for name, size in SIZES.items():
        stretch = Stretch(offset=0, size=size, width=1)
        made = list(blocks.encode(memoryview(content(name)), (stretch,), CODECS[name]))
        store.put(f"f/{name}", [stored for _, stored in made])
        stored_size = sum(block.size for block, _ in made)
        files.append(DataFile(name=name, size=stored_size, blocks=tuple(block for block, _ in made)))
    return files


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(PosixDisk(), str(tmp_path))


def taken(store: LocalStore, files: list[DataFile]) -> tuple[list[Damage], dict[str, bytes]]:
    pieces: dict[tuple[int, int], bytes] = {}

    def take(number: int, begin: int, raw: Buffer) -> None:
        pieces[number, begin] = bytes(raw)

    damage = read_files(store, "f", files, take)
    whole = {file.name: b"" for file in files}
    for (number, begin), raw in sorted(pieces.items()):
        if begin == len(whole[files[number].name]):
            whole[files[number].name] += raw
    return damage, whole


@pytest.mark.parametrize("place", ["local", "elsewhere"])
def test_all_bytes_come_back(store: LocalStore, place: str) -> None:
    store = store if place == "local" else LocalStore(SimDisk(), "root")
    damage, found = taken(store, put(store))
    assert damage == []
    assert found == {name: content(name) for name in SIZES}


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_the_first_damage_of_each_file_is_told_in_order(store: LocalStore, tmp_path: Path) -> None:
    files = put(store)
    for at in (BLOCK + 1, 2 * BLOCK + 1):
        flip(tmp_path / "f" / "a.blocks", at)
    second = files[2].blocks[1].offset
    (tmp_path / "f" / "c.blocks").write_bytes((tmp_path / "f" / "c.blocks").read_bytes()[: second + 10])
    for _ in range(10):
        damage, _ = taken(store, files)
        assert damage == [
            Damage(key="f/a.blocks", what=f"the block at {BLOCK} does not match its digest"),
            Damage(
                key="f/c.blocks",
                what=f"the block at {second} should have {files[2].blocks[1].size} bytes and has 10",
            ),
        ]


def test_what_the_fast_way_cannot_read_the_store_reads(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    files = put(store)

    def failing(self: LocalFile, start: int, size: int, buffer: object) -> memoryview:
        if start:
            raise OSError(errno.EIO, "Input/output error")
        return memoryview(bytes(size))  # wrong bytes

    monkeypatch.setattr(LocalFile, "read", failing)
    damage, found = taken(store, files)
    assert damage == []
    assert found == {name: content(name) for name in SIZES}


def test_what_tells_of_this_process_is_raised(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    files = put(store)

    def full(number: int, begin: int, raw: Buffer) -> None:
        raise MemoryError

    with pytest.raises(NotReadableHere, match=r"f/a\.blocks does not fit into memory"):
        read_files(store, "f", files, full)

    def forbidden(self: PosixDisk, path: str, start: int = 0, size: int | None = None) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied")

    def closed(self: LocalFile, path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(PosixDisk, "read", forbidden)
    monkeypatch.setattr(LocalFile, "__init__", closed)
    with pytest.raises(StoreError, match="no permission"):
        taken(store, files)


def test_no_thread_stays_and_an_error_ends_the_others() -> None:
    done: list[int] = []

    def work(jobs: Iterator[int]) -> None:
        for job in jobs:
            if job == 5:
                raise KeyError(job)
            done.append(job)

    with pytest.raises(KeyError):
        side_by_side(iter(range(6)), work, threads=THREADS)
    assert sorted(done) == [0, 1, 2, 3, 4]
    assert not any(thread.name.startswith("mementum-read") for thread in threading.enumerate())
