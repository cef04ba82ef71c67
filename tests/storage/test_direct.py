"""Direct writes happen where memory and file allow them, and no byte is lost or doubled where they do not."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mementum.errors import StoreError
from mementum.storage import direct
from mementum.storage.direct import ALIGNMENT, DIRECT_MIN, O_DIRECT, address, flat
from mementum.storage.disk import PosixDisk
from mementum.storage.local import LocalStore

pytestmark = pytest.mark.skipif(not O_DIRECT, reason="this system has no O_DIRECT")

Fate = Callable[[int, memoryview], int]


def memory(size: int, *, off: int = 0, seed: int = 0) -> memoryview:
    """Random bytes that begin `off` bytes after a page does."""
    held = mmap.mmap(-1, size + off)
    held[off:] = random.Random(seed).randbytes(size)
    return memoryview(held)[off:]


class Kernel:
    """os.write as a strict file system does it, which notes how each write came: (direct, bytes)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, direct_write: Fate | None = None) -> None:
        self.seen: list[tuple[bool, int]] = []
        self._real, self._direct_write = os.write, direct_write
        monkeypatch.setattr(os, "write", self.write)

    def write(self, descriptor: int, data: memoryview) -> int:
        is_direct = bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & O_DIRECT)
        self.seen.append((is_direct, len(data)))
        if not is_direct:
            return self._real(descriptor, data)
        if (address(data) | os.lseek(descriptor, 0, os.SEEK_CUR) | len(data)) % ALIGNMENT:
            raise OSError(errno.EINVAL, "not on the borders")
        return self._real(descriptor, data) if self._direct_write is None else self._direct_write(descriptor, data)

    def through_the_cache(self, descriptor: int, data: memoryview) -> int:
        """Write what no real direct write could: a part that ends off the border."""
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~O_DIRECT)
        written = self._real(descriptor, data)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
        return written


def put(disk: PosixDisk, path: Path, chunks: list[memoryview]) -> None:
    with disk.create(str(path)) as file:
        for chunk in chunks:
            file.write(chunk)
        file.fsync()


def test_aligned_memory_is_written_directly_but_for_its_tail(tmp_path, monkeypatch):
    kernel, disk = Kernel(monkeypatch), PosixDisk()
    whole = memory(2 * DIRECT_MIN + 4096 + 77)
    put(disk, tmp_path / "a", [whole[: 2 * DIRECT_MIN], whole[2 * DIRECT_MIN :]])
    assert kernel.seen == [(True, 2 * DIRECT_MIN), (False, 4096 + 77)]
    put(disk, tmp_path / "b", [whole])
    assert kernel.seen[2:] == [(True, 2 * DIRECT_MIN + 4096), (False, 77)]
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() == whole
    assert disk.refused_direct is None


def test_memory_that_may_only_be_read_is_written_directly_too(tmp_path, monkeypatch):
    kernel, whole = Kernel(monkeypatch), memory(DIRECT_MIN).toreadonly()
    put(PosixDisk(), tmp_path / "a", [whole])
    assert kernel.seen == [(True, DIRECT_MIN)]
    assert (tmp_path / "a").read_bytes() == whole


def test_small_and_unaligned_chunks_go_through_the_cache_whole(tmp_path, monkeypatch):
    kernel = Kernel(monkeypatch)
    small, unaligned = memory(DIRECT_MIN - 1), memory(DIRECT_MIN, off=16)
    put(PosixDisk(), tmp_path / "a", [small])
    put(PosixDisk(), tmp_path / "b", [unaligned])
    assert kernel.seen == [(False, DIRECT_MIN - 1), (False, DIRECT_MIN)]
    assert (tmp_path / "b").read_bytes() == unaligned


def test_a_chunk_that_meets_the_file_off_the_border_is_direct_between_its_ends(tmp_path, monkeypatch):
    kernel, first = Kernel(monkeypatch), memory(100)
    second = memory(DIRECT_MIN + 5000, off=100, seed=1)
    put(PosixDisk(), tmp_path / "a", [first, second])
    assert kernel.seen == [(False, 100), (False, 3996), (True, DIRECT_MIN), (False, 1004)]
    assert (tmp_path / "a").read_bytes() == bytes(first) + bytes(second)


@pytest.mark.parametrize("seed", range(6))
def test_any_mixture_of_chunks_and_short_writes_is_the_same_file(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(direct, "DIRECT_MIN", 2 * ALIGNMENT)
    choose = random.Random(seed)

    def short(descriptor: int, data: memoryview) -> int:
        ends = choose.choice((len(data), choose.randrange(1, len(data)), ALIGNMENT))
        return kernel.through_the_cache(descriptor, data[:ends])

    kernel = Kernel(monkeypatch, short)
    chunks, at = [], 0
    for number in range(40):
        size = choose.choice((0, 1, 4095, 4096, 8192, 12_289, choose.randrange(100_000)))
        off = choose.choice((0, at % ALIGNMENT, 16))
        chunks.append(memory(size, off=off, seed=number) if size else memoryview(b""))
        at += size
    put(PosixDisk(), tmp_path / "a", chunks)
    assert (tmp_path / "a").read_bytes() == b"".join(chunks)
    assert {is_direct for is_direct, _ in kernel.seen} == {True, False}


def refused(descriptor: int, data: memoryview) -> int:
    raise OSError(errno.EINVAL, "no direct writes here")


def test_a_file_system_that_refuses_is_met_once(tmp_path, monkeypatch):
    kernel, disk, whole = Kernel(monkeypatch, refused), PosixDisk(), memory(2 * DIRECT_MIN)
    for name in ("a", "b"):
        put(disk, tmp_path / name, [whole[:DIRECT_MIN], whole[DIRECT_MIN:]])
        assert (tmp_path / name).read_bytes() == whole
    cached = [(False, DIRECT_MIN)] * 2
    assert kernel.seen == [(True, DIRECT_MIN), *cached, *cached]
    assert disk.refused_direct == str(tmp_path / "a")
    assert PosixDisk().refused_direct is None


def test_files_that_were_open_at_the_refusal_go_on_too(tmp_path, monkeypatch):
    kernel, disk, whole = Kernel(monkeypatch, refused), PosixDisk(), memory(DIRECT_MIN)
    with disk.create(str(tmp_path / "a")) as a, disk.create(str(tmp_path / "b")) as b:
        b.write(whole)
        a.write(whole)
    assert [is_direct for is_direct, _ in kernel.seen] == [True, False, True, False]
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() == whole
    assert disk.refused_direct == str(tmp_path / "b")


def test_a_file_system_that_refuses_the_flag_itself(tmp_path, monkeypatch):
    real = fcntl.fcntl

    def no_flag(descriptor: int, command: int, flags: int = 0) -> int:
        if command == fcntl.F_SETFL and flags & O_DIRECT:
            raise OSError(errno.EINVAL, "no such flag here")
        return real(descriptor, command, flags)

    monkeypatch.setattr(fcntl, "fcntl", no_flag)
    disk, whole = PosixDisk(), memory(DIRECT_MIN + 1)
    put(disk, tmp_path / "a", [whole])
    assert (tmp_path / "a").read_bytes() == whole
    assert disk.refused_direct == str(tmp_path / "a")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_an_error_of_a_direct_write_loses_the_file(tmp_path, monkeypatch, number):
    def half_then_full(descriptor: int, data: memoryview) -> int:
        if os.lseek(descriptor, 0, os.SEEK_CUR) > 0:
            raise OSError(number, "full")
        return kernel.through_the_cache(descriptor, data[:5000])

    kernel, disk, whole = Kernel(monkeypatch, half_then_full), PosixDisk(), memory(DIRECT_MIN)
    with disk.create(str(tmp_path / "a")) as file:
        with pytest.raises(OSError, match="full"):
            file.write(whole)
        for again in (file.fsync, lambda: file.write(whole), lambda: file.write(b"small")):
            with pytest.raises(OSError, match="an earlier write of this file failed"):
                again()
    assert disk.refused_direct is None
    with pytest.raises(StoreError):
        LocalStore(disk, str(tmp_path / "store")).put("f/a", [whole])
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []


def test_a_cached_write_that_fails_loses_the_file(tmp_path, monkeypatch):
    def full(descriptor: int, data: memoryview) -> int:
        raise OSError(errno.EINVAL, "refused")

    for file in (PosixDisk().create(str(tmp_path / "a")), PosixDisk().append(str(tmp_path / "b"))):
        with file, monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(OSError, match="refused"):
                file.write(b"data")
            with pytest.raises(OSError, match="an earlier write of this file failed"):
                file.fsync()


def test_the_address_is_that_of_the_first_byte():
    whole = memory(3 * ALIGNMENT)
    assert address(whole) % ALIGNMENT == 0
    assert [address(whole[start:]) - address(whole) for start in (1, 16, ALIGNMENT)] == [1, 16, ALIGNMENT]


def test_a_chunk_is_seen_as_single_bytes():
    chunks = (np.zeros((0, 3)), np.zeros((2, 3), np.int16), b"abc")
    assert [(len(view), view.format) for view in map(flat, chunks)] == [(0, "B"), (12, "B"), (3, "B")]
